"""B24: whatever the head and the machine, auto keeps up with plain batching and with every fixed depth.

An engine as shipped, on a clock of the model's own: what a step takes is what its tokens cost, and nothing is timed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from mtplx.batching.blocks import BlockAllocator
from mtplx.batching.speculation import Costs, CostTable, DraftCost
from mtplx.batching.state import DraftRequest, SchedulerMode, StepPlan, StopRules
from mtplx.model.runner import Choose, Logits
from mtplx.model.spec import RunnerInfo
from mtplx.sampling_params import SamplingParams
from mtplx.server.engine import EngineCore, Submit
from mtplx.server.modes import make_scheduler, make_speculator
from tests.fakes import EOS, fake_spec

# What a step costs: hardly more for more tokens, and as much more as in the README's table.
SIZES = np.arange(1, 161)
MACHINES = {
    "flat": Costs(CostTable(tuple((1.0 + 0.03 * SIZES).tolist())), DraftCost(0.05, 0.002)),
    "two cores": Costs(CostTable(tuple((3.0 + 0.85 * SIZES).tolist())), DraftCost(0.3, 0.01)),
}


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("machine", MACHINES)
def test_b24_auto_is_never_slower_than_plain_batching_or_any_fixed_depth(width: int, machine: str) -> None:
    """With heads from always wrong to always right."""
    costs = MACHINES[machine]
    for p_right in (0.0, 0.6, 1.0):
        fixed = [tokens_per_simulated_s(p_right, costs, depth, width, 5) for depth in (0, 1, 2, 4, 8)]
        auto = tokens_per_simulated_s(p_right, costs, None, width, 150)
        assert auto >= 0.97 * max(fixed)


def tokens_per_simulated_s(p_right: float, costs: Costs, depth: int | None, width: int, num_steps: int) -> float:
    """Of `width` long answers over so many steps, after as many uncounted ones; at depth 0 it is ar_batch."""
    runner = PacedRunner(p_right, costs)
    scheduler = make_scheduler(
        SchedulerMode.AR_BATCH if depth == 0 else SchedulerMode.MTP_BATCH,
        BlockAllocator(runner.num_blocks, runner.block_size),
        decode_batch_max=width,
        prefill_chunk_tokens=64,
        speculator=make_speculator(depth, costs if depth is None else None, prefill_chunk_tokens=64),
    )
    core = EngineCore(runner, scheduler, clock=lambda: runner.now_s)
    for seq_id in range(width):
        params, stops = SamplingParams(temperature=0.0), StopRules(max_tokens=4000)
        core.add(Submit(seq_id, (65 + seq_id, 65), params, seed=0, choice=0, stops=stops))
    for _ in range(num_steps):
        core.step()
    start_s, num_before = runner.now_s, runner.num_expected
    for _ in range(num_steps):
        core.step()
    assert core.counters.last_step_width == width
    return (runner.num_expected - num_before) / (runner.now_s - start_s)


class PacedRunner:
    """A model that says the next letter, on a clock of its own; its head is right with `p_right`.

    `num_expected` are the tokens to be expected of all steps: what was emitted depends on luck, which the policy sees.
    """

    num_blocks, block_size, max_draft_depth = 4096, 16, 8

    def __init__(self, p_right: float, costs: Costs) -> None:
        self.spec = fake_spec(max_position=4096)
        self.info = RunnerInfo("fake", "cpu", "float32", exact=True, exact_note="a pure function")
        self.now_s = self.num_expected = 0.0
        self._p_right, self._costs = p_right, costs

    def run(self, plan: StepPlan) -> Logits:
        self.now_s += self._costs.step.of(plan.num_tokens)
        self.num_expected += sum(self._p_right**i for row in plan.rows for i in range(row.num_logits))
        wanted = [i for row in plan.rows for i in row.token_ids[len(row.token_ids) - row.num_logits :]]
        return self._logits([_next_letter(token_id) for token_id in wanted])

    def draft(self, requests: Sequence[DraftRequest], choose: Choose) -> list[tuple[int, ...]]:
        num_levels = max(request.depth for request in requests)
        num_tokens = sum(len(request.token_ids) + max(0, request.depth - 1) for request in requests)
        self.now_s += self._costs.draft.of(num_levels, num_tokens)
        return [tuple(self._guesses(request)) for request in requests]

    def close(self) -> None: ...

    def _guesses(self, request: DraftRequest) -> Iterator[int]:
        token_id = request.token_ids[-1]
        for position in range(request.end, request.end + request.depth):
            token_id = _next_letter(token_id)
            luck = random.Random(10_000 * request.seq_id + position).random()
            yield token_id if luck < self._p_right else EOS

    def _logits(self, token_ids: Sequence[int]) -> Logits:
        logits_WV = np.zeros((len(token_ids), self.spec.vocab_size), dtype=np.float32)
        logits_WV[np.arange(len(token_ids)), token_ids] = 50.0
        return logits_WV


def _next_letter(token_id: int) -> int:
    return 65 + (token_id - 64) % 26
