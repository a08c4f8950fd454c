"""The JSON of POST /v1/completions, whole and in chunks."""

from __future__ import annotations

from collections.abc import Sequence

from mtplx.decode.logprobs import TokenLogprobs
from mtplx.server.answer import AnswerParts, Choice, metrics_of
from mtplx.server.choice_text import Delta
from mtplx.server.error_bodies import answer_of
from mtplx.server.logprob_shapes import completion_logprobs
from mtplx.server.responses import Completion, CompletionChoice, CompletionLogprobs, ErrorBody, Usage
from mtplx.text.detokenizer import Detokenizer


class CompletionAnswer:
    """A chunk has the shape of a whole answer; a choice's last chunk has its finish reason."""

    def __init__(self, parts: AnswerParts) -> None:
        self._parts = parts
        self._offsets: dict[int, _Offsets] = {}  # by choice number; only where logprobs were asked for

    def opening(self) -> list[Completion]:
        return []

    def chunks(self, choice: Choice, delta: Delta) -> list[Completion]:
        reports_tokens = delta.token_ids and (self._parts.has_logprobs or self._parts.has_token_ids)
        if not (delta.text or reports_tokens or delta.finish_reason):
            return []
        piece = self._choice(choice, delta.text, delta.token_ids, delta.logprobs)
        is_first = len(choice.token_ids) == len(delta.token_ids)
        if self._parts.has_token_ids and is_first:
            piece["prompt_token_ids"] = list(choice.prompt_ids)
        return [self._answer([piece])]

    def closing(self, choices: Sequence[Choice], usage: Usage) -> list[Completion]:
        if not self._parts.has_usage:
            return []
        chunk = self._answer([])
        chunk["usage"] = usage
        chunk["metrics"] = metrics_of(choices)
        return [chunk]

    def failure(self, error: Exception) -> list[ErrorBody]:
        return [answer_of(error).body]

    def whole(self, choices: Sequence[Choice], usage: Usage) -> Completion:
        pieces = [self._choice(choice, choice.text, choice.token_ids, choice.logprobs) for choice in choices]
        answer = self._answer(pieces)
        answer["usage"] = usage
        answer["metrics"] = metrics_of(choices)
        if self._parts.has_token_ids:
            for piece, choice in zip(pieces, choices, strict=True):
                piece["prompt_token_ids"] = list(choice.prompt_ids)
            if len(self._parts.prompts) == 1:
                answer["prompt_token_ids"] = list(self._parts.prompts[0])
        return answer

    def _choice(
        self, choice: Choice, text: str, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]
    ) -> CompletionChoice:
        piece: CompletionChoice = {
            "index": choice.number,
            "text": text,
            "logprobs": self._logprobs(choice.number, token_ids, logprobs),
            "finish_reason": choice.finish_reason,
        }
        if self._parts.has_token_ids:
            piece["token_ids"] = list(token_ids)
        return piece

    def _logprobs(
        self, number: int, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]
    ) -> CompletionLogprobs | None:
        if not self._parts.has_logprobs:
            return None
        offsets = self._offsets.setdefault(number, _Offsets(Detokenizer(self._parts.tokenizer, continues=True)))
        return completion_logprobs(self._parts.tokenizer, logprobs, [offsets.next(token_id) for token_id in token_ids])

    def _answer(self, choices: list[CompletionChoice]) -> Completion:
        head = self._parts.head
        return {
            "id": head.id,
            "created": head.created,
            "model": head.model,
            "system_fingerprint": head.fingerprint,
            "seed": head.seed,
            "object": "text_completion",
            "choices": choices,
        }


class _Offsets:
    """Where in a choice's text each token begins: the whole characters that the tokens before it make."""

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer
        self._num_characters = 0

    def next(self, token_id: int) -> int:
        """The offset of the next token of the choice, which is `token_id`."""
        offset = self._num_characters
        self._num_characters += len(self._detokenizer.push([token_id]))
        return offset
