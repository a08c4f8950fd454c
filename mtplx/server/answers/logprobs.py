"""Log-probabilities in the two shapes that OpenAI's endpoints have for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mtplx.decode.logprobs import TokenLogprob, TokenLogprobs
from mtplx.server.answers.shapes import ChatLogprobs, ChatTokenLogprob, CompletionLogprobs, TopLogprob
from mtplx.text.tokenizer import Tokenizer


def chat_logprobs(tokenizer: Tokenizer, entries: Iterable[TokenLogprobs]) -> ChatLogprobs:
    """One entry a token, each with its likeliest alternatives in their order."""
    return {"content": [_chat_entry(tokenizer, entry) for entry in entries], "refusal": None}


def completion_logprobs(
    tokenizer: Tokenizer, entries: Sequence[TokenLogprobs], offsets: Sequence[int]
) -> CompletionLogprobs:
    """Parallel lists; `offsets` has one entry a token. The chosen token is always among its `top_logprobs`."""
    return {
        "tokens": [tokenizer.token_text(entry.chosen.token_id) for entry in entries],
        "token_logprobs": [entry.chosen.logprob for entry in entries],
        "top_logprobs": [_by_text(tokenizer, entry) for entry in entries],
        "text_offset": list(offsets),
    }


def _chat_entry(tokenizer: Tokenizer, entry: TokenLogprobs) -> ChatTokenLogprob:
    chosen = _top_logprob(tokenizer, entry.chosen)
    return {**chosen, "top_logprobs": [_top_logprob(tokenizer, token) for token in entry.top]}


def _top_logprob(tokenizer: Tokenizer, token: TokenLogprob) -> TopLogprob:
    return {
        "token": tokenizer.token_text(token.token_id),
        "logprob": token.logprob,
        "bytes": list(tokenizer.token_bytes(token.token_id)),
    }


def _by_text(tokenizer: Tokenizer, entry: TokenLogprobs) -> dict[str, float]:
    """Keyed by text, likeliest first; a text that two tokens share (a cut character, say) is told apart by its id."""
    logprobs: dict[str, float] = {}
    for token in _with_chosen(entry):
        text = tokenizer.token_text(token.token_id)
        logprobs[f"{text}<{token.token_id}>" if text in logprobs else text] = token.logprob
    return logprobs


def _with_chosen(entry: TokenLogprobs) -> Iterable[TokenLogprob]:
    return entry.top if entry.chosen in entry.top else (*entry.top, entry.chosen)
