"""What was written before the token being drawn, in the form that penalties and min_tokens ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mtplx.sampling_params import SamplingParams


@dataclass(slots=True)
class History:
    """The prompt and the emitted tokens of one sequence, as counts over the vocabulary.

    Invariant: where counts are kept they add up to `num_emitted`, and every counted id is seen. A request without
    penalties keeps arrays of length 0, since nothing will read them. Of the emitted tokens themselves the last
    `tail_len` are kept, for bans of runs of tokens.
    """

    prompt_len: int
    num_emitted: int
    is_seen: npt.NDArray[np.bool_]  # V: in the prompt or emitted
    emitted_counts: npt.NDArray[np.int32]  # V: times emitted
    tail_len: int = 0
    tail: tuple[int, ...] = ()

    @classmethod
    def of_prompt(cls, prompt_ids: Sequence[int], params: SamplingParams, vocab_size: int) -> History:
        """Returns the history of a sequence that has emitted nothing yet."""
        size = vocab_size if uses_penalties(params) else 0
        tail_len = max((len(run) - 1 for run in params.banned_runs), default=0)
        history = cls(len(prompt_ids), 0, np.zeros(size, dtype=np.bool_), np.zeros(size, dtype=np.int32), tail_len)
        if history.keeps_counts:
            history.is_seen[np.asarray(prompt_ids, dtype=np.int64)] = True
        return history

    @property
    def keeps_counts(self) -> bool:
        return len(self.emitted_counts) > 0

    @property
    def next_position(self) -> int:
        """The absolute position of the token to be drawn next."""
        return self.prompt_len + self.num_emitted

    def copy(self) -> History:
        """One that can grow by guesses while this one stays."""
        is_seen, counts = self.is_seen, self.emitted_counts
        if self.keeps_counts:
            is_seen, counts = is_seen.copy(), counts.copy()
        return History(self.prompt_len, self.num_emitted, is_seen, counts, self.tail_len, self.tail)

    def append(self, token_id: int) -> None:
        """Adds an emitted token."""
        self.num_emitted += 1
        if self.tail_len:
            self.tail = (*self.tail, token_id)[-self.tail_len :]
        if self.keeps_counts:
            self.is_seen[token_id] = True
            self.emitted_counts[token_id] += 1

    def check(self) -> None:
        """Asserts the invariant."""
        assert self.num_emitted >= 0
        assert len(self.tail) == min(self.tail_len, self.num_emitted)
        if self.keeps_counts:
            assert int(self.emitted_counts.sum()) == self.num_emitted
            assert bool(self.is_seen[self.emitted_counts > 0].all())


def uses_penalties(params: SamplingParams) -> bool:
    """Whether the draw depends on which tokens came before."""
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
