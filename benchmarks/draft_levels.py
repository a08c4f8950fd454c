"""A draft head looked at alone: what one level of drafts takes beside a step of one token, and a head made wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.engines import WrappedRunner
from benchmarks.report import Row, median_and_spread
from mtplx.batching.state import DraftRequest, StepPlan
from mtplx.batching.state import Row as PlanRow
from mtplx.decode.drafter import DraftChooser
from mtplx.decode.sampler import Sampler
from mtplx.model.runner import Choose, DraftingRunner, Runner, drafting_runner, run_of
from mtplx.sampling_params import SamplingParams

HISTORY = 128  # tokens before the one that is decoded
DEEP = 5


class WrongHead(WrappedRunner):
    """A head that takes its time and is then wrong: every guess becomes the id after it."""

    def __init__(self, inner: Runner) -> None:
        super().__init__(inner)
        self.run_with_argmax = run_of(inner)  # as quick as without it

    def draft(self, requests: Sequence[DraftRequest], choose: Choose) -> list[tuple[int, ...]]:
        vocab_size = self.spec.vocab_size
        return [tuple((token_id + 1) % vocab_size for token_id in drafts) for drafts in super().draft(requests, choose)]


@dataclass(frozen=True, slots=True)
class Levels:
    """Seconds by round: a step of one token, and drafting after it to depth 1 and to depth `DEEP`."""

    step_s: tuple[float, ...]
    first_s: tuple[float, ...]
    deep_s: tuple[float, ...]

    @property
    def first_shares(self) -> list[float]:
        """A first draft over t(1), round by round, the building of one slot and all of Python included."""
        return [first_s / step_s for first_s, step_s in zip(self.first_s, self.step_s, strict=True)]

    @property
    def further_shares(self) -> list[float]:
        """Each draft after the first over t(1), round by round."""
        rounds = zip(self.first_s, self.deep_s, self.step_s, strict=True)
        return [(deep_s - first_s) / (DEEP - 1) / step_s for first_s, deep_s, step_s in rounds]

    def rows(self) -> list[Row]:
        found = []
        for name, samples in (("step", self.step_s), ("depth 1", self.first_s), (f"depth {DEEP}", self.deep_s)):
            median, spread = median_and_spread([1000 * seconds for seconds in samples])
            found.append({"call": name, "ms": median, "ms spread": spread})
        return found


def measure_levels(runner: Runner, repeats: int) -> Levels:
    """One greedy row in turns through the model and through its head. Nothing may be in the cache."""
    drafting = drafting_runner(runner)
    assert drafting is not None
    token_ids = np.random.default_rng(0).integers(100, 1000, HISTORY + 1).tolist()
    blocks = tuple(range(-(-(HISTORY + 1 + DEEP) // drafting.block_size)))
    sampler = Sampler(drafting.spec.vocab_size)
    sampler.add(0, SamplingParams(temperature=0), seed=0, choice=0, prompt_ids=token_ids, stop_ids=frozenset())
    drafting.run(StepPlan((PlanRow(0, 0, tuple(token_ids[:-1]), blocks, num_logits=0),)))
    _draft(drafting, sampler, DraftRequest(0, 1, tuple(token_ids[1:]), blocks, depth=0))
    plan = StepPlan((PlanRow(0, HISTORY, (token_ids[-1],), blocks, num_logits=1),))
    first, deep = (DraftRequest(0, HISTORY, (token_ids[-1],), blocks, depth) for depth in (1, DEEP))
    calls: tuple[Callable[[], object], ...] = (
        lambda: drafting.run(plan),
        lambda: _draft(drafting, sampler, first),
        lambda: _draft(drafting, sampler, deep),
    )
    rounds = [[_seconds(call) for call in calls] for _ in range(repeats)]
    return Levels(*(tuple(samples) for samples in zip(*rounds, strict=True)))


def _draft(runner: DraftingRunner, sampler: Sampler, request: DraftRequest) -> list[tuple[int, ...]]:
    """As the engine asks for drafts."""
    return runner.draft([request], DraftChooser(sampler, [request], runner.spec.vocab_size))


def _seconds(call: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    call()
    return time.perf_counter() - start_s
