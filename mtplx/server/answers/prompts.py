"""What is told of a prompt: its tokens and how likely they were, in the shapes of OpenAI's echo and of vLLM's field."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mtplx.decode.logprobs import TokenLogprobs
from mtplx.server.answers.logprobs import completion_logprobs
from mtplx.server.answers.shapes import CompletionLogprobs, PromptLogprob, PromptLogprobs
from mtplx.server.protocol.completions import CompletionRequest
from mtplx.text.detokenizer import Detokenizer
from mtplx.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Echo:
    """The texts of prompts to be repeated before their answers, in request order.

    `num_top` likeliest tokens beside each of their tokens, None without any logprobs.
    """

    texts: Sequence[str]
    num_top: int | None


def echo_of(body: CompletionRequest, prompts: Sequence[Sequence[int]], tokenizer: Tokenizer) -> Echo | None:
    """A request's prompts as it sent them, or else what their token ids say; None where no echo is wanted."""
    if not body.echo:
        return None
    texts = [
        sent
        if isinstance(sent, str) and body.truncate_prompt_tokens is None
        else tokenizer.decode(token_ids, skip_special_tokens=False)
        for sent, token_ids in zip(body.prompts(), prompts, strict=True)
    ]
    return Echo(texts, body.logprobs)


def echo_logprobs(
    tokenizer: Tokenizer, text: str, prompt_ids: Sequence[int], entries: Sequence[TokenLogprobs], num_top: int
) -> CompletionLogprobs:
    """Those of a prompt that is echoed as `text`; nothing is known of its first token, as nothing is before it."""
    num_unscored = len(prompt_ids) - len(entries)  # more than one only where the time was over before
    scored = completion_logprobs(tokenizer, [_with_top(entry, num_top) for entry in entries], [])
    first = [tokenizer.token_text(token_id) for token_id in prompt_ids[:1]]
    rest = [tokenizer.token_text(token_id) for token_id in prompt_ids[1 + len(entries) :]]
    unknown = [None] * (num_unscored - 1)
    return {
        "tokens": [*first, *scored["tokens"], *rest],
        "token_logprobs": [None, *scored["token_logprobs"], *unknown],
        "top_logprobs": [None, *scored["top_logprobs"], *unknown],
        "text_offset": list(_offsets(tokenizer, text, prompt_ids)),
    }


def prompt_logprobs(
    tokenizer: Tokenizer, prompt_ids: Sequence[int], entries: Sequence[TokenLogprobs]
) -> PromptLogprobs:
    """One entry a prompt token, null for the first: by token id its logprob, rank and text, the prompt's own first."""
    told: list[dict[str, PromptLogprob] | None] = [None]
    for entry in entries:
        by_id = {
            str(entry.chosen.token_id): _prompt_logprob(
                tokenizer, entry.chosen.token_id, entry.chosen.logprob, entry.rank
            )
        }
        for rank, token in enumerate(entry.top, start=1):
            by_id.setdefault(str(token.token_id), _prompt_logprob(tokenizer, token.token_id, token.logprob, rank))
        told.append(by_id)
    return told + [None] * (len(prompt_ids) - len(told))


def joined(first: CompletionLogprobs, then: CompletionLogprobs) -> CompletionLogprobs:
    return {
        "tokens": first["tokens"] + then["tokens"],
        "token_logprobs": first["token_logprobs"] + then["token_logprobs"],
        "top_logprobs": first["top_logprobs"] + then["top_logprobs"],
        "text_offset": first["text_offset"] + then["text_offset"],
    }


def _with_top(entry: TokenLogprobs, num_top: int) -> TokenLogprobs:
    return replace(entry, top=entry.top[:num_top])


def _prompt_logprob(tokenizer: Tokenizer, token_id: int, logprob: float, rank: int) -> PromptLogprob:
    return {"logprob": logprob, "rank": rank, "decoded_token": tokenizer.token_text(token_id)}


def _offsets(tokenizer: Tokenizer, text: str, prompt_ids: Sequence[int]) -> Iterator[int]:
    """Where in the text each token begins; a bos token that isn't spelled in it has no place of its own."""
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=False)
    offset = 0
    for index, token_id in enumerate(prompt_ids):
        yield min(offset, len(text))
        is_unspelled = index == 0 and token_id in tokenizer.special_ids
        if is_unspelled and not text.startswith(tokenizer.token_text(token_id)):
            continue
        offset += len(detokenizer.push([token_id]))
