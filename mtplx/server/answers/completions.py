"""The JSON of POST /v1/completions, whole and in chunks."""

from __future__ import annotations

from collections.abc import Sequence

from mtplx.decode.logprobs import TokenLogprobs
from mtplx.server.answers.answer import AnswerParts, Choice, metrics_of
from mtplx.server.answers.logprobs import completion_logprobs
from mtplx.server.answers.prompts import echo_logprobs, joined, prompt_logprobs
from mtplx.server.answers.shapes import Completion, CompletionChoice, CompletionLogprobs, ErrorBody, Usage
from mtplx.server.choice_text import Delta
from mtplx.server.error_bodies import answer_of
from mtplx.text.detokenizer import Detokenizer


class CompletionAnswer:
    """A chunk has the shape of a whole answer; a choice's last chunk has its finish reason, its first one the echo."""

    def __init__(self, parts: AnswerParts) -> None:
        self._parts = parts
        self._offsets: dict[int, _Offsets] = {}  # by choice number; only where logprobs were asked for
        self._echoed: set[int] = set()  # numbers of choices; asked for membership alone

    def opening(self) -> list[Completion]:
        return []

    def chunks(self, choice: Choice, delta: Delta) -> list[Completion]:
        chunks = self._answer_chunks(choice, delta)
        if self._parts.echo is not None and choice.number not in self._echoed:
            self._echoed.add(choice.number)
            chunks.insert(0, self._answer([self._echo_choice(choice)]))
        return chunks

    def _answer_chunks(self, choice: Choice, delta: Delta) -> list[Completion]:
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
        pieces = [self._whole_choice(choice) for choice in choices]
        answer = self._answer(pieces)
        answer["usage"] = usage
        answer["metrics"] = metrics_of(choices)
        if self._parts.has_token_ids:
            for piece, choice in zip(pieces, choices, strict=True):
                piece["prompt_token_ids"] = list(choice.prompt_ids)
            if len(self._parts.prompts) == 1:
                answer["prompt_token_ids"] = list(self._parts.prompts[0])
        return answer

    def _whole_choice(self, choice: Choice) -> CompletionChoice:
        piece = self._choice(choice, choice.text, choice.token_ids, choice.logprobs)
        if self._parts.echo is not None:
            echo = self._echo_choice(choice)
            piece["text"] = echo["text"] + piece["text"]
            if echo["logprobs"] and piece["logprobs"]:
                piece["logprobs"] = joined(echo["logprobs"], piece["logprobs"])
        if self._parts.has_prompt_logprobs:
            piece["prompt_logprobs"] = prompt_logprobs(self._parts.tokenizer, choice.prompt_ids, choice.prompt_logprobs)
        return piece

    def _echo_choice(self, choice: Choice) -> CompletionChoice:
        """A choice as far as it is the prompt over again."""
        echo, text = self._parts.echo, self._echo_text(choice.number)
        assert echo is not None
        logprobs = None
        if echo.num_top is not None:
            logprobs = echo_logprobs(
                self._parts.tokenizer, text, choice.prompt_ids, choice.prompt_logprobs, echo.num_top
            )
        return {"index": choice.number, "text": text, "logprobs": logprobs, "finish_reason": None}

    def _echo_text(self, number: int) -> str:
        return self._parts.echo.texts[number // self._parts.num_choices] if self._parts.echo else ""

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
        if number not in self._offsets:
            detokenizer = Detokenizer(
                self._parts.tokenizer, skip_special_tokens=self._parts.skips_special_tokens, continues=True
            )
            self._offsets[number] = _Offsets(detokenizer, len(self._echo_text(number)))
        offsets = self._offsets[number]
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

    def __init__(self, detokenizer: Detokenizer, num_before: int) -> None:
        """`num_before` characters of the choice's text come before its first token."""
        self._detokenizer = detokenizer
        self._num_characters = num_before

    def next(self, token_id: int) -> int:
        """The offset of the next token of the choice, which is `token_id`."""
        offset = self._num_characters
        self._num_characters += len(self._detokenizer.push([token_id]))
        return offset
