"""The protocols between the engine and whatever computes logits and drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from mtplx.batching.state import DraftRequest, StepPlan
from mtplx.model.spec import ModelSpec, RunnerInfo

Logits = npt.NDArray[np.float32] | npt.NDArray[np.float64]


class Runner(Protocol):
    """A model with its paged cache. Owned by one thread."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def info(self) -> RunnerInfo: ...

    @property
    def num_blocks(self) -> int: ...

    @property
    def block_size(self) -> int:
        """Tokens in a cache block."""
        ...

    def run(self, plan: StepPlan) -> Logits:
        """Computes every row, writes its cache entries and returns logits_WV, row-major in plan order.

        W is `plan.num_logits`: for each row the logits of its last `num_logits` tokens, in token order. The result is
        the caller's: a later call doesn't change it. Running the same plan again gives the same cache and logits.

        Raises:
            Exception: anything; the caller treats it as this step's failure.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class ArgmaxRunner(Runner, Protocol):
    """A runner that sees where the largest logits are as it computes them; to look later is to read them all."""

    def run_with_argmax(self, plan: StepPlan) -> tuple[Logits, Sequence[int]]:
        """As `run`, and for each line the first id with the largest logit; -1 if there is a NaN or it isn't finite."""
        ...


class Choose(Protocol):
    """Draws one draft for each of some requests of a `draft` call, with the request's own noise, filters and penalties.

    `requests` are indices into the call's list, `logits_RW` has one line for each. The columns are the vocabulary, or
    the ascending token ids `ids_W` of a head that knows only a part of it. `argmax_R` is the column of each line's
    largest logit as in `ArgmaxRunner`, if the runner knows it. None in the answer ends that request's guessing: its
    next token ends the answer, or the logits give none. Every call for a request is one position on.
    """

    def __call__(
        self,
        requests: Sequence[int],
        logits_RW: Logits,
        ids_W: npt.NDArray[np.integer] | None = None,
        argmax_R: Sequence[int] | None = None,
    ) -> list[int | None]: ...


@runtime_checkable
class DraftingRunner(Runner, Protocol):
    """A runner with a draft head, whose cache it pages by the same block ids as the model's own.

    The head's slot p holds what the head made of the model's hidden state of position p - 1 (after the final norm)
    and of token p; from slot p it guesses token p + 1. Slot 0 stays empty. So slot p can be built as soon as the model
    has computed position p - 1 and token p is known, at the edge of a chunk too: there token p is the next chunk's
    first. The runner keeps, for each cache slot that `run` writes, the hidden state of that position; it needs no
    memory of sequences besides, and what `run` has written over is dead for the head as for the model.

        tokens        p0 p1 p2 p3 e4           prompt of 4; the model has computed 0 to 3 and emitted e4
        draft         start 1, token_ids p1 p2 p3 e4, depth 2
                      builds slots 1 2 3 4 from (h0, p1) (h1, p2) (h2, p3) (h3, e4); slot 4 guesses g5,
                      slot 5 is made of the head's own output and g5, and guesses g6
        run           row e4 g5 g6 from position 4; the model accepts g5 and says e6 where g6 was
        draft         start 5, token_ids g5 e6, depth 2
                      builds slots 5 6 from (h4, g5) (h5, e6): what the guesses left in slot 5 is written over

    Each call names exactly the slots to build, none twice unless nothing has changed since, and slots below `start`
    hold what earlier calls built for the same tokens and blocks. A call with depth 0 only builds.
    """

    @property
    def max_draft_depth(self) -> int:
        """The most drafts it can make for one row; 0 without a head."""
        ...

    def draft(self, requests: Sequence[DraftRequest], choose: Choose) -> list[tuple[int, ...]]:
        """Builds every request's slots and returns its guesses, in order: up to `depth`, those that `choose` drew.

        For each level all requests that still guess are one call of `choose` at most. `run` may come in between and
        must leave the slots alone.

        Raises:
            Exception: anything; the caller goes on without drafts and asks for the same slots again.
        """
        ...


def run_of(runner: Runner) -> Callable[[StepPlan], tuple[Logits, Sequence[int] | None]]:
    """Its `run_with_argmax`; its `run`, and None in place of what it doesn't know, where it has none."""
    return runner.run_with_argmax if isinstance(runner, ArgmaxRunner) else lambda plan: (runner.run(plan), None)


def drafting_runner(runner: Runner) -> DraftingRunner | None:
    """The runner, if it has a head."""
    return runner if isinstance(runner, DraftingRunner) and runner.max_draft_depth > 0 else None
