"""Turns a step's logits into tokens, row by row, position by position; a draft stands only where it equals the token.

Knows sequences by id and rows by their plan. It doesn't know which mode made the plan, and ends nothing: cutting at a
stop id or at max_tokens is the scheduler's commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mtplx.batching.speculation import MAX_DEPTH
from mtplx.batching.state import Likely, Row, RowOutcome, StepPlan
from mtplx.decode.bans import bans
from mtplx.decode.filters import in_order
from mtplx.decode.history import History
from mtplx.decode.logprobs import TokenLogprobs, token_logprobs
from mtplx.decode.matcher import Matcher
from mtplx.decode.next_token import Logits, greedy_tokens_of, is_sound, next_token, plain_from
from mtplx.decode.noise import NoiseKey, gumbel_of_one
from mtplx.decode.noisy_argmax import NoisyArgmax, fastest_noisy_argmax
from mtplx.errors import GenerationError, NoTokenLeftError, RequestError
from mtplx.sampling_params import SamplingParams
from mtplx.text.grammar import CompiledGrammar

_NEGLIGIBLE = -5.0  # a score, of e^-5 of the likeliest one's probability


@dataclass(slots=True)  # one a token, as `Row`
class SampledRow:
    """One row's outcome; `logprobs` has one entry a token where the request wants them, else none.

    `prompt_logprobs` has one entry for each token that the row scores.
    """

    outcome: RowOutcome
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


class Sampler:
    """The next-token function with what it must remember of each sequence.

    Only `decode` changes what is remembered, by exactly the tokens it returned. A preempted sequence keeps its entry:
    its recomputed prefix holds the tokens it emitted, so positions go on where they were. Tokens that a commit cuts
    off stay counted, which nobody sees, since such a sequence has ended.

    Invariant: an entry's next position is the position of the next token that a plan asks for.
    """

    def __init__(
        self,
        vocab_size: int,
        noisy_argmax: NoisyArgmax | None = None,
        *,
        tells_forced: bool = False,
        num_likely: int = 0,
    ) -> None:
        """`noisy_argmax` is by default the fastest one here; `tells_forced` for who makes drafts of what is forced.

        With `num_likely` outcomes also say of each token drawn by chance which so many ids were likeliest there.
        """
        self._vocab_size = vocab_size
        self._tells_forced = tells_forced
        self._num_likely = num_likely if num_likely <= vocab_size else 0
        self._noisy_argmax = noisy_argmax or fastest_noisy_argmax()
        self._entries: dict[int, SamplerEntry] = {}

    def add(
        self,
        seq_id: int,
        params: SamplingParams,
        *,
        seed: int,
        choice: int,
        prompt_ids: Sequence[int],
        stop_ids: frozenset[int],
        grammar: CompiledGrammar | None = None,
    ) -> None:
        """Starts a sequence. `stop_ids` are those that end it: min_tokens bans them until it is reached.

        `grammar` is that of `params`, compiled for this vocabulary.

        Raises:
            RequestError: logit_bias or allowed_token_ids name an id outside the vocabulary.
        """
        assert seq_id not in self._entries, f"sequence {seq_id} was added before"
        assert (grammar is None) == (params.grammar is None), "a grammar is compiled before it is asked for"
        for param, token_ids in (
            ("logit_bias", params.logit_bias),
            ("allowed_token_ids", params.allowed_token_ids or ()),
        ):
            for token_id in token_ids:
                if not 0 <= token_id < self._vocab_size:
                    raise RequestError(f"{param}: token id {token_id} is not below {self._vocab_size}", param)
        stops = np.array(sorted(i for i in stop_ids if 0 <= i < self._vocab_size), dtype=np.int64)
        history = History.of_prompt(prompt_ids, params, self._vocab_size)
        matcher = None if grammar is None else Matcher.of(grammar)
        self._entries[seq_id] = SamplerEntry(
            params, seed, choice, stops, plain_from(params), history, self._noisy_argmax, matcher
        )

    def remove(self, seq_id: int) -> None:
        """Forgets a sequence.

        Raises:
            KeyError: it isn't known; the caller's table and this one have parted, which must not stay hidden.
        """
        del self._entries[seq_id]

    def decode(self, plan: StepPlan, logits_WV: Logits, argmax_W: Sequence[int] | None = None) -> list[SampledRow]:
        """Returns what each row of the plan yields, in order; `logits_WV` has `plan.num_logits` lines in plan order.

        `argmax_W` are the `greedy_tokens` of all lines, if the runner knows them.
        A row inside a prompt yields scores, if it has any. A row whose logits can't give a token or a score yields an
        error and leaves the others alone.
        """
        assert logits_WV.shape == (plan.num_logits, self._vocab_size), logits_WV.shape
        first_lines = _first_lines(plan)
        plain_tokens = self._plain_tokens(plan, first_lines, logits_WV, argmax_W)
        return [
            self._decode_row(row, first_line, logits_WV, plain_tokens)
            for row, first_line in zip(plan.rows, first_lines, strict=True)
        ]

    def copy_of(self, seq_id: int) -> SamplerEntry:
        """What is remembered of a sequence, to be drawn from and grown by guesses without any effect here."""
        return self._entries[seq_id].copy()

    def lucky(self, seq_id: int, position: int, likely: Likely) -> int:
        """Which of a few ids a sequence would draw at a position if these were all; a guess, for drafts."""
        entry, token_ids = self._entries[seq_id], likely[0]
        temperature = entry.params.temperature
        scores = (
            [score / temperature for score in likely[1] if score > _NEGLIGIBLE * temperature] if temperature else []
        )
        if len(scores) < 2:
            return token_ids[0]
        noise_key = NoiseKey(entry.seed, position, entry.choice)
        values = [
            score + gumbel_of_one(token_id, noise_key) for token_id, score in zip(token_ids, scores, strict=False)
        ]
        return token_ids[values.index(max(values))]

    def check(self) -> None:
        """Asserts the invariants of every entry."""
        for entry in self._entries.values():
            entry.history.check()

    def _plain_tokens(
        self, plan: StepPlan, first_lines: list[int], logits_WV: Logits, argmax_W: Sequence[int] | None
    ) -> dict[int, int]:
        """The tokens of all plain greedy lines, by line; lines without a sound argmax are left out."""
        lines = [
            line
            for row, first_line in zip(plan.rows, first_lines, strict=True)
            if row.num_drawn > 0 and self._entries[row.seq_id].is_plain_greedy
            for line in range(first_line + len(row.scored_ids), first_line + row.num_logits)
        ]
        if not lines:
            return {}
        token_ids = greedy_tokens_of(lines, logits_WV, argmax_W)
        return {line: token_id for line, token_id in zip(lines, token_ids, strict=True) if token_id >= 0}

    def _decode_row(self, row: Row, first_line: int, logits_WV: Logits, plain_tokens: Mapping[int, int]) -> SampledRow:
        """The scores of the row's prompt tokens, then what is drawn behind them."""
        num_scored = len(row.scored_ids)
        try:
            scores = self._scores(row, logits_WV[first_line : first_line + num_scored])
        except GenerationError as error:
            return SampledRow(RowOutcome(error=str(error)))
        if row.num_drawn == 0:
            return SampledRow(RowOutcome(), prompt_logprobs=scores)
        drawn = self._draw_row(row, first_line + num_scored, logits_WV, plain_tokens)
        return replace(drawn, prompt_logprobs=scores) if scores else drawn

    def _scores(self, row: Row, logits_SV: Logits) -> tuple[TokenLogprobs, ...]:
        if not row.scored_ids:
            return ()
        num_top = self._entries[row.seq_id].params.prompt_logprobs
        assert num_top is not None, "scores that nobody asked for"
        if not is_sound(logits_SV):
            raise GenerationError("the model returned logits without a finite largest value")
        return tuple(
            token_logprobs(logits_V, token_id, num_top)
            for logits_V, token_id in zip(logits_SV, row.scored_ids, strict=True)
        )

    def _draw_row(self, row: Row, first_line: int, logits_WV: Logits, plain_tokens: Mapping[int, int]) -> SampledRow:
        """Accepts drafts for as long as they equal the function's token; the last token is the function's own.

        drafts a b c, function a b x: emits a b x.   drafts a b c, function a b c d: emits a b c d.
        """
        entry = self._entries[row.seq_id]
        assert row.num_drawn == 1 + row.num_drafts, "a token for each draft and one more"
        assert row.end - row.num_drafts == entry.history.next_position, (row, entry.history.next_position)
        token_ids: list[int] = []
        logprobs: list[TokenLogprobs] = []
        likely: list[Likely] = []
        tells_likely = self._num_likely > 0 and entry.params.temperature > 0.0
        for index in range(row.num_drawn):
            logits_V = logits_WV[first_line + index]
            try:
                plain_token = plain_tokens.get(first_line + index)
                token_id = entry.draw(logits_V) if plain_token is None else plain_token
            except GenerationError as error:
                # Tokens before the failing position stand, as they would without drafts; the next step fails here.
                if not token_ids:
                    is_clients_fault = isinstance(error, NoTokenLeftError)
                    return SampledRow(RowOutcome(error=str(error), is_clients_fault=is_clients_fault))
                break
            token_ids.append(token_id)
            if entry.params.logprobs is not None:
                logprobs.append(token_logprobs(logits_V, token_id, entry.params.logprobs))
            if tells_likely:
                likely.append(_likely(logits_V, self._num_likely))
            entry.append(token_id)
            if index < row.num_drafts and row.draft_ids[index] != token_id:
                break
        forced_ids = entry.matcher.forced_ids(MAX_DEPTH) if entry.matcher and self._tells_forced else ()
        outcome = RowOutcome(tuple(token_ids), forced_ids=forced_ids, likely=tuple(likely))
        return SampledRow(outcome, tuple(logprobs))


@dataclass(slots=True)
class SamplerEntry:
    """The function's arguments for one sequence, but for the logits."""

    params: SamplingParams
    seed: int
    choice: int
    stop_ids: npt.NDArray[np.int64]  # ascending, inside the vocabulary
    plain_from: float  # that of `params`
    history: History
    noisy_argmax: NoisyArgmax
    matcher: Matcher | None = None  # where it is in its grammar

    def copy(self) -> SamplerEntry:
        """One that can go on while this one stays."""
        matcher = None if self.matcher is None else self.matcher.copy()
        own = (self.params, self.seed, self.choice, self.stop_ids, self.plain_from)
        return SamplerEntry(*own, self.history.copy(), self.noisy_argmax, matcher)

    @property
    def is_plain_greedy(self) -> bool:
        """Whether the token is the argmax of the raw logits."""
        return self.params.temperature == 0.0 and self.is_plain

    @property
    def _noise_key(self) -> NoiseKey:
        return NoiseKey(self.seed, self.history.next_position, self.choice)

    @property
    def is_plain(self) -> bool:
        """Whether no id is asked for by its name."""
        return self.history.num_emitted >= self.plain_from

    def draw_among(self, logits_W: Logits, ids_W: npt.NDArray[np.integer]) -> int:
        """The token at the next position, of a plain entry, if only these ids could come. Raises: GenerationError."""
        return next_token(logits_W, self.params, self.history, self._noise_key, None, self.noisy_argmax, ids_W)

    def draw(self, logits_V: Logits) -> int:
        """The token at the next position. Raises: GenerationError."""
        is_banned_V = bans(self.params, self.history, self.stop_ids, len(logits_V), self.matcher)
        return next_token(logits_V, self.params, self.history, self._noise_key, is_banned_V, self.noisy_argmax)

    def append(self, token_id: int) -> None:
        """Goes on by one token."""
        self.history.append(token_id)
        if self.matcher is not None:
            self.matcher.append(token_id)

    def ends_with(self, token_id: int) -> bool:
        """Whether the answer would end if that token came next."""
        return token_id in self.stop_ids.tolist()


def _likely(logits_V: Logits, count: int) -> Likely:
    ids_C = in_order(logits_V, count)
    return tuple(ids_C.tolist()), tuple((logits_V[ids_C] - logits_V[ids_C[0]]).tolist())


def _first_lines(plan: StepPlan) -> list[int]:
    """For each row the index of its first line of logits."""
    first_lines, line = [], 0
    for row in plan.rows:
        first_lines.append(line)
        line += row.num_logits
    return first_lines
