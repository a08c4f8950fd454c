"""Measures what steps and drafts cost on this machine: runs made-up plans before there are clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from mtplx.batching.speculation import Costs, CostTable, DraftCost
from mtplx.batching.state import DraftRequest, Row, StepPlan
from mtplx.model.runner import DraftingRunner, Logits, Runner, drafting_runner

_SIZES = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32, 33, 48, 64, 65, 96, 128)  # steps in the cost come after 8, 16, ..
_STEP_SHARE = 0.75  # of the time, for the steps; the rest is for drafts
_DRAFT_ROWS = 4
_STEP_RUNS = 4  # of each kind: the first plain one still comes after a draft
_CHECK_RUNS = 3
_TRUE_WITHIN = 1.5  # the factor between then and now


def measure_costs(
    runner: Runner, *, max_tokens: int, budget_s: float = 1.5, clock: Callable[[], float] = time.perf_counter
) -> Costs:
    """Costs of steps of up to `max_tokens` tokens, and of a head's drafts if there is one.

    Nothing may be in the cache, and nothing that matters is left there.
    Takes about `budget_s`: sizes that the time doesn't reach follow the slope of those measured. The first run of all
    is thrown away. What real steps cost, with longer histories, is corrected while serving.
    """
    step_end_s = clock() + _STEP_SHARE * budget_s
    drafting = drafting_runner(runner)
    runner.run(_plan(runner, 1))
    plain: dict[int, float] = {}
    after_draft: dict[int, float] = {}
    firsts_s: list[float] = []  # of a first draft between two steps, whose weights have taken its caches
    for size in [size for size in _SIZES if size <= min(max_tokens, runner.num_blocks)]:
        plain[size] = min(_step_s(runner, size, clock) for _ in range(_STEP_RUNS))
        if drafting:
            pairs = [_draft_and_step_s(drafting, size, clock) for _ in range(_STEP_RUNS)]
            firsts_s += [draft_s for draft_s, _ in pairs]
            after_draft[size] = min(step_s for _, step_s in pairs)
        if clock() >= step_end_s:
            break
    if drafting is None:
        return Costs(CostTable(_between(plain)), DraftCost())
    drafts = _measure_drafts(drafting, budget_s * (1 - _STEP_SHARE), clock, min(firsts_s))
    return Costs(CostTable(_between(plain)), drafts, CostTable(_between(after_draft)))


def still_hold(runner: Runner, costs: Costs, clock: Callable[[], float] = time.perf_counter) -> bool:
    """Whether one token takes about what `costs` say, in a step and in a draft, by a few runs of each.

    It doesn't where other programs were busy when the costs were measured, or are now. Conditions and consequences are
    those of `measure_costs`.
    """
    plan, drafting = _plan(runner, 1), drafting_runner(runner)
    runner.run(plan)
    step_s = min(_seconds(lambda: runner.run(plan), clock) for _ in range(_CHECK_RUNS))
    if not _is_about(step_s, costs.step.of(1)):
        return False
    if drafting is None:
        return True
    drafting.draft(_requests(drafting, 1, depth=1), _choose_any)
    draft_s = min(_draft_and_step_s(drafting, 1, clock)[0] for _ in range(_CHECK_RUNS))
    return _is_about(draft_s, costs.draft.of(1, 1))


def _step_s(runner: Runner, size: int, clock: Callable[[], float]) -> float:
    plan = _plan(runner, size)
    return _seconds(lambda: runner.run(plan), clock)


def _draft_and_step_s(runner: DraftingRunner, size: int, clock: Callable[[], float]) -> tuple[float, float]:
    """Of one draft, and of the step that it came before."""
    requests = _requests(runner, 1, depth=1)
    draft_s = _seconds(lambda: runner.draft(requests, _choose_any), clock)
    return draft_s, _step_s(runner, size, clock)


def _measure_drafts(runner: DraftingRunner, budget_s: float, clock: Callable[[], float], first_s: float) -> DraftCost:
    """A level's cost from one row, a token's from several; at least one pair of runs, more while there is time.

    A level is taken to cost at least what a first draft does, of which `first_s` is known.
    """
    num_rows = max(1, min(_DRAFT_ROWS, runner.num_blocks))
    levels = min(2, runner.max_draft_depth)
    assert runner.block_size >= 2 + levels, "each row has one block for two tokens and its guesses"
    one_s = many_s = float("inf")
    end_s = clock() + budget_s
    runner.run(_plan(runner, num_rows))
    runner.draft(_requests(runner, 1, levels), _choose_any)
    while True:
        one_s = min(one_s, _seconds(lambda: runner.draft(_requests(runner, 1, levels), _choose_any), clock))
        many_s = min(many_s, _seconds(lambda: runner.draft(_requests(runner, num_rows, levels), _choose_any), clock))
        if clock() >= end_s:
            break
    per_token_s = max(0.0, (many_s - one_s) / (levels * (num_rows - 1))) if num_rows > 1 else 0.0
    level_s = max(first_s, one_s / levels)
    return DraftCost(per_level_s=max(0.0, level_s - per_token_s), per_token_s=per_token_s)


def _plan(runner: Runner, num_rows: int) -> StepPlan:
    """As many rows of one token, each the first in a block of its own."""
    return StepPlan(tuple(Row(-1 - row, 0, (0,), (row,), num_logits=1) for row in range(num_rows)))


def _requests(runner: DraftingRunner, num_rows: int, depth: int) -> list[DraftRequest]:
    return [DraftRequest(-1 - row, 1, (0,), (row,), depth) for row in range(num_rows)]


def _choose_any(
    requests: Sequence[int],
    logits_RW: Logits,
    ids_W: npt.NDArray[np.integer] | None = None,
    argmax_R: Sequence[int] | None = None,
) -> list[int | None]:
    """Takes the time that plain greedy drafts take, and never ends a row."""
    if argmax_R is None:
        logits_RW.argmax(axis=1)
    return [0] * len(requests)


def _is_about(now_s: float, then_s: float) -> bool:
    return then_s / _TRUE_WITHIN <= now_s <= then_s * _TRUE_WITHIN


def _seconds(call: Callable[[], object], clock: Callable[[], float]) -> float:
    start_s = clock()
    call()
    return max(clock() - start_s, 1e-9)


def _between(measured: dict[int, float]) -> tuple[float, ...]:
    """Seconds of every size from 1 to the largest: straight lines between those measured, never falling.

    What disturbs a run makes it longer, so where fewer tokens took more time than more of them, the more are right.
    """
    sizes = sorted(measured)
    seconds = [measured[sizes[0]]] * sizes[0]
    for low, high in pairwise(sizes):
        rise = (measured[high] - measured[low]) / (high - low)
        seconds += [measured[low] + rise * step for step in range(1, high - low + 1)]
    for index in reversed(range(len(seconds) - 1)):
        seconds[index] = min(seconds[index], seconds[index + 1])
    return tuple(seconds)
