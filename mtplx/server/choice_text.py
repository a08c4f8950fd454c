"""A choice's tokens as pieces of text: detokenised, cut at stop strings, told apart from calls and thoughts.

Lives on the event loop; knows nothing of who reads the pieces.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from mtplx.batching.state import FinishReason
from mtplx.decode.logprobs import TokenLogprobs
from mtplx.sampling_params import SamplingParams
from mtplx.server.engine import SequenceOutput
from mtplx.text.detokenizer import Detokenizer
from mtplx.text.reader import AnswerReader, Reading, joined
from mtplx.text.stops import StopMatcher, StopResult
from mtplx.text.tokenizer import Tokenizer
from mtplx.text.tools.parts import Part


@dataclass(slots=True)  # one a token, as `Row`
class Delta:
    """One piece of one choice: its text, and the tokens that this completes.

    Both may be empty, since text is held back for stop strings, and a character may need several tokens.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]  # one a token, or empty when none were asked for
    finish_reason: FinishReason | None = None  # set on the choice's last delta
    num_draft_tokens: int = 0  # that the step verified,
    num_accepted_tokens: int = 0  # and how many of the drafts were right
    num_cached_tokens: int = 0  # of the prompt, that came from the prefix cache
    stop_string: str | None = None  # that ended the choice
    at_s: float = 0.0  # monotonic clock when the step had ended,
    started_at_s: float | None = None  # and in a choice's first delta, when its first step began
    parts: tuple[Part, ...] | None = None  # what the text is made of, where calls or thoughts are told from it
    num_reasoning_tokens: int = 0  # of the token ids
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # of the prompt's next tokens; with the first choice alone


@dataclass(slots=True)
class _Read:
    """What a step's tokens have been turned into so far."""

    text: str = ""
    parts: list[Part] = field(default_factory=list)
    num_reasoning_tokens: int = 0


@dataclass(slots=True)  # one a token, as `Row`
class _Token:
    token_id: int
    logprobs: tuple[TokenLogprobs, ...]  # one, or none when none were asked for
    end: int  # characters of the answer that must be out before the token is


class _HeldTokens:
    """Tokens of which some text is still held back; they go out with it, in their order.

    tokens "E" "N" "x", stop string "END": "E" and "N" are held with their text, then all three go out with "ENx"
    """

    def __init__(self) -> None:
        self._tokens: deque[_Token] = deque()
        self._num_read = 0
        self._num_sent = 0

    def add(self, token_id: int, logprobs: tuple[TokenLogprobs, ...], num_characters: int, *, is_whole: bool) -> None:
        """Adds a token that brought so many characters; without `is_whole` the next one is its own too."""
        self._num_read += num_characters
        self._tokens.append(_Token(token_id, logprobs, self._num_read + (not is_whole)))

    def take(self, num_characters: int, *, is_last: bool) -> list[_Token]:
        """Those that so many more characters complete, all of them with the last characters."""
        self._num_sent += num_characters
        taken = []
        while self._tokens and (is_last or self._tokens[0].end <= self._num_sent):
            taken.append(self._tokens.popleft())
        return taken


class ChoiceText:
    """Turns one sequence's tokens into deltas, token by token: finds its stop strings, and calls and thoughts."""

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer,
        params: SamplingParams,
        stop_ids: frozenset[int],
        *,
        continues: bool,
        reading: Reading | None = None,
    ) -> None:
        self.index = index
        shown_ids = frozenset() if reading is None else tokenizer.token_ids(reading.markers)
        self._detokenizer = Detokenizer(
            tokenizer,
            skip_special_tokens=params.skip_special_tokens,
            continues=continues,
            shown_ids=shown_ids,
        )
        self._reader = None if reading is None else AnswerReader(reading)
        self._stops = StopMatcher(params.stop)
        self._min_tokens = params.min_tokens
        self._keeps_stop = params.include_stop_str_in_output
        self._hidden_ids = frozenset() if self._keeps_stop else stop_ids  # what ends the answer is no part of it
        self._num_tokens = 0
        self._held = _HeldTokens()

    def push(self, output: SequenceOutput) -> Delta:
        """The delta for one step's tokens.

        Ends at the first token that completes a stop string, or the only call that may be made.
        """
        read = _Read()
        for count, token_id in enumerate(output.token_ids, 1):
            self._num_tokens += 1
            text = "" if token_id in self._hidden_ids else self._detokenizer.push([token_id])
            is_whole = self._detokenizer.is_between_characters
            self._held.add(token_id, output.logprobs[count - 1 : count], len(text), is_whole=is_whole)
            found = self._match(text)
            is_done = self._read(found.text, read)
            if found.is_stopped or is_done:
                return self._delta(read, output, count, FinishReason.STOP, found.stop)
        if output.finish_reason is None:
            return self._delta(read, output, len(output.token_ids), None)
        found = self._match(self._detokenizer.flush())
        self._read(found.text if found.is_stopped else found.text + self._stops.flush(), read, is_token=False)
        reason = FinishReason.STOP if found.is_stopped else output.finish_reason
        return self._delta(read, output, len(output.token_ids), reason, found.stop)

    def _match(self, text: str) -> StopResult:
        found = self._stops.push(text, active=self._num_tokens >= self._min_tokens)
        return StopResult(found.text + found.stop, found.stop) if self._keeps_stop and found.stop else found

    def _read(self, text: str, read: _Read, *, is_token: bool = True) -> bool:
        """Adds a token's text to what has been read; True when the answer has ended with it."""
        read.text += text
        reader = self._reader
        if reader is None:
            return False
        was_reasoning = reader.is_reasoning
        read.parts += reader.push(text)
        read.num_reasoning_tokens += is_token and (was_reasoning or reader.is_reasoning)
        return reader.is_done and self._num_tokens >= self._min_tokens

    def _delta(
        self,
        read: _Read,
        output: SequenceOutput,
        count: int,
        reason: FinishReason | None,
        stop_string: str | None = None,
    ) -> Delta:
        if self._reader is not None and reason is not None:
            read.parts += self._reader.flush()
            if reason is FinishReason.STOP and self._reader.has_whole_calls:
                reason = FinishReason.TOOL_CALLS
        tokens = self._held.take(len(read.text), is_last=reason is not None)
        return Delta(
            index=self.index,
            text=read.text,
            token_ids=tuple([token.token_id for token in tokens]),
            logprobs=tuple([entry for token in tokens for entry in token.logprobs]),
            finish_reason=reason,
            num_draft_tokens=output.num_draft_tokens,
            num_accepted_tokens=min(output.num_accepted_tokens, count),
            num_cached_tokens=output.num_cached_tokens,
            stop_string=stop_string,
            at_s=output.at_s,
            started_at_s=output.started_at_s,
            parts=None if self._reader is None else tuple(joined(read.parts)),
            num_reasoning_tokens=read.num_reasoning_tokens,
            prompt_logprobs=output.prompt_logprobs,
        )
