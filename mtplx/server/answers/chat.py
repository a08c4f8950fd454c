"""The JSON of POST /v1/chat/completions, whole and in chunks."""

from __future__ import annotations

from collections.abc import Sequence

from mtplx.decode.logprobs import TokenLogprobs
from mtplx.server.answers.answer import AnswerParts, Choice, metrics_of
from mtplx.server.answers.chat_parts import chat_deltas, chat_message
from mtplx.server.answers.logprobs import chat_logprobs
from mtplx.server.answers.prompts import prompt_logprobs
from mtplx.server.answers.shapes import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatLogprobs,
    ErrorBody,
    Usage,
)
from mtplx.server.choice_text import Delta
from mtplx.server.error_bodies import answer_of


class ChatAnswer:
    """In a stream every choice begins with its role and ends with a chunk that has only its finish reason."""

    def __init__(self, parts: AnswerParts) -> None:
        self._parts = parts

    def opening(self) -> list[ChatCompletionChunk]:
        chunks = [
            self._chunk([self._chunk_choice(number, {"role": "assistant", "content": ""})])
            for number in range(self._parts.num_choices)
        ]
        if self._parts.has_token_ids:
            chunks[0]["prompt_token_ids"] = list(self._parts.prompts[0])
        return chunks

    def chunks(self, choice: Choice, delta: Delta) -> list[ChatCompletionChunk]:
        reports_tokens = delta.token_ids and (self._parts.has_logprobs or self._parts.has_token_ids)
        silence: list[ChatDelta] = [{"content": ""}] if reports_tokens else []
        pieces = [self._chunk_choice(choice.number, piece) for piece in [*chat_deltas(choice, delta)] or silence]
        if pieces:  # the tokens of a delta go with its first piece
            pieces[0]["logprobs"] = self._logprobs(delta.logprobs)
            if self._parts.has_token_ids:
                pieces[0]["token_ids"] = list(delta.token_ids)
        if delta.finish_reason is not None:
            pieces.append(self._chunk_choice(choice.number, {}, choice.finish_reason))
        return [self._chunk([piece]) for piece in pieces]

    def closing(self, choices: Sequence[Choice], usage: Usage) -> list[ChatCompletionChunk]:
        if not self._parts.has_usage:
            return []
        chunk = self._chunk([])
        chunk["usage"] = usage
        chunk["metrics"] = metrics_of(choices)
        return [chunk]

    def failure(self, error: Exception) -> list[ErrorBody]:
        return [answer_of(error).body]

    def whole(self, choices: Sequence[Choice], usage: Usage) -> ChatCompletion:
        head = self._parts.head
        answer: ChatCompletion = {
            "id": head.id,
            "created": head.created,
            "model": head.model,
            "system_fingerprint": head.fingerprint,
            "seed": head.seed,
            "object": "chat.completion",
            "choices": [self._whole_choice(choice) for choice in choices],
            "usage": usage,
            "metrics": metrics_of(choices),
        }
        if self._parts.has_token_ids:
            answer["prompt_token_ids"] = list(self._parts.prompts[0])
        if self._parts.has_prompt_logprobs:
            first = choices[0]
            answer["prompt_logprobs"] = prompt_logprobs(self._parts.tokenizer, first.prompt_ids, first.prompt_logprobs)
        return answer

    def _whole_choice(self, choice: Choice) -> ChatChoice:
        whole: ChatChoice = {
            "index": choice.number,
            "message": chat_message(choice, must_call=self._parts.must_call),
            "logprobs": self._logprobs(choice.logprobs),
            "finish_reason": choice.finish_reason or "",
        }
        if self._parts.has_token_ids:
            whole["token_ids"] = list(choice.token_ids)
        return whole

    def _chunk(self, choices: list[ChatChunkChoice]) -> ChatCompletionChunk:
        head = self._parts.head
        return {
            "id": head.id,
            "created": head.created,
            "model": head.model,
            "system_fingerprint": head.fingerprint,
            "seed": head.seed,
            "object": "chat.completion.chunk",
            "choices": choices,
        }

    def _chunk_choice(self, number: int, delta: ChatDelta, finish_reason: str | None = None) -> ChatChunkChoice:
        return {"index": number, "delta": delta, "logprobs": None, "finish_reason": finish_reason}

    def _logprobs(self, entries: Sequence[TokenLogprobs]) -> ChatLogprobs | None:
        return chat_logprobs(self._parts.tokenizer, entries) if self._parts.has_logprobs else None
