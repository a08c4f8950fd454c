"""One admitted request on its way to the client: its streams are read into choices, and choices into an answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from mtplx.server.answers.answer import Answer, AnswerParts, Choice, make_choices, usage_of
from mtplx.server.choice_text import Delta
from mtplx.server.disconnect import all_of
from mtplx.server.sse import EventWriter
from mtplx.server.stream import RequestStream


class Generation:
    """Owns the streams of one request, one a prompt; whoever has it must close it.

    Read it once: either `whole()` or `write_to()`. `on_delta` hears of every delta as it comes, with the
    number of its choice.
    """

    def __init__(
        self,
        streams: Sequence[RequestStream],
        parts: AnswerParts,
        answer: Answer,
        on_delta: Callable[[int, Delta], None],
    ) -> None:
        self._streams = streams
        self._parts = parts
        self._answer = answer
        self._on_delta = on_delta
        self._choices = make_choices(parts)

    async def whole(self) -> Any:
        """The answer in one piece, when all choices have ended; raises what a stream raises."""
        await all_of(self._read(number) for number in range(len(self._streams)))
        return self._answer.whole(self._choices, usage_of(self._parts, self._choices))

    async def write_to(self, writer: EventWriter) -> None:
        """Writes the answer in chunks as the tokens come; raises what a stream raises."""
        for chunk in self._answer.opening():
            await writer.write(self._with_usage(chunk))
        await all_of(self._write(number, writer) for number in range(len(self._streams)))
        for chunk in self._answer.closing(self._choices, usage_of(self._parts, self._choices)):
            await writer.write(chunk)

    def close(self) -> None:
        """Cancels what is unfinished; harmless when nothing is."""
        for stream in self._streams:
            stream.close()

    async def _read(self, prompt_number: int) -> None:
        async for _ in self._deltas(prompt_number):
            pass

    async def _write(self, prompt_number: int, writer: EventWriter) -> None:
        async for choice, delta in self._deltas(prompt_number):
            for chunk in self._answer.chunks(choice, delta):
                await writer.write(self._with_usage(chunk))

    def _with_usage(self, chunk: Any) -> Any:
        if self._parts.has_running_usage:
            chunk["usage"] = usage_of(self._parts, self._choices)
        return chunk

    async def _deltas(self, prompt_number: int) -> AsyncIterator[tuple[Choice, Delta]]:
        """Each delta of one prompt with its choice, to which it has been added."""
        async for choice, delta in self._scored(prompt_number):
            choice.add(delta)
            yield choice, delta

    async def _scored(self, prompt_number: int) -> AsyncIterator[tuple[Choice, Delta]]:
        """The same before it is added. What comes before the prompt's scores are there, where they are wanted, waits:

        the first choice has them, and another may have its first token before.
        """
        stream, first_choice = self._streams[prompt_number], prompt_number * self._parts.num_choices
        num_missing = len(stream.prompt_ids) - 1 if self._parts.has_prompt_scores else 0
        held: list[tuple[Choice, Delta]] = []
        async for delta in stream:
            choice = self._choices[first_choice + delta.index]
            choice.prompt_logprobs += delta.prompt_logprobs
            self._on_delta(choice.number, delta)
            held.append((choice, delta))
            if len(choice.prompt_logprobs) >= num_missing:
                for item in held:
                    yield item
                held.clear()
        for item in held:  # the time was over before
            yield item
