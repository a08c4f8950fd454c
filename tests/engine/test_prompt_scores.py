"""Scores of a prompt: each token but the first, once, the same whatever mode, chunk, draft or neighbour there is."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from mtplx.batching.blocks import BlockAllocator
from mtplx.batching.budget import MAX_SCORED_TOKENS, share_out
from mtplx.batching.state import FinishReason, SchedulerMode, StepPlan, StopRules
from mtplx.batching.state import Sequence as Seq
from mtplx.decode.logprobs import TokenLogprobs, token_logprobs
from mtplx.model.runner import Logits
from mtplx.sampling_params import SamplingParams
from mtplx.server.engine import Cancel, EngineCore, SequenceOutput, Submit
from mtplx.server.modes import make_scheduler, make_speculator
from tests.fakes import EOS, FakeDraftingRunner, FakeRunner

CASES = [(mode, depth) for mode in SchedulerMode for depth in (0, 1, 4) if not (mode == "ar_batch" and depth)]


def core_of(
    runner: FakeRunner,
    mode: SchedulerMode = SchedulerMode.SERIAL,
    depth: int = 0,
    *,
    width: int = 4,
    chunk: int = 16,
    shares: bool = True,
) -> EngineCore:
    scheduler = make_scheduler(
        mode,
        BlockAllocator(runner.num_blocks, runner.block_size),
        decode_batch_max=width,
        prefill_chunk_tokens=chunk,
        speculator=make_speculator(depth, None, prefill_chunk_tokens=chunk),
        prefix_salt=b"fake" if shares else None,
    )
    return EngineCore(runner, scheduler, clock=lambda: 0.0)


def submit(
    seq_id: int, prompt: Sequence[int], *, max_tokens: int = 6, scores: int | None = 2, choice: int = 0, **fields: int
) -> Submit:
    params = SamplingParams(max_tokens=max_tokens, prompt_logprobs=scores, logprobs=1)
    stops = StopRules(max_tokens, frozenset({EOS}))
    return Submit(seq_id, tuple(prompt), params, seed=5, choice=choice, stops=stops, **fields)  # type: ignore[arg-type]


def prompt_of(seq_id: int, length: int) -> tuple[int, ...]:
    rng = random.Random(seq_id)
    return tuple(rng.randint(32, 120) for _ in range(length))


def true_scores(prompt: Sequence[int], num_top: int) -> list[TokenLogprobs]:
    """From the fake's logits themselves, without an engine."""
    runner = FakeRunner()
    return [
        token_logprobs(runner._logits(tuple(prompt[:position])).astype(np.float32), prompt[position], num_top)
        for position in range(1, len(prompt))
    ]


def play(core: EngineCore, submits: Sequence[Submit]) -> dict[int, list[SequenceOutput]]:
    for one in submits:
        core.add(one)
    outputs: dict[int, list[SequenceOutput]] = {one.seq_id: [] for one in submits}
    while core.has_work:
        for output in core.step():
            assert output.error is None
            outputs[output.seq_id].append(output)
        core.scheduler.table.check()
    assert core.scheduler.table.blocks.num_used == 0
    return outputs


def scores_of(outputs: Sequence[SequenceOutput]) -> list[TokenLogprobs]:
    return [entry for output in outputs for entry in output.prompt_logprobs]


def answer_of(outputs: Sequence[SequenceOutput]) -> tuple[list[int], list[TokenLogprobs]]:
    return (
        [token_id for output in outputs for token_id in output.token_ids],
        [entry for output in outputs for entry in output.logprobs],
    )


@pytest.mark.parametrize(("mode", "depth"), CASES)
def test_are_the_models_own_beside_others_that_have_none(mode: SchedulerMode, depth: int) -> None:
    """Twice, so that the second time finds every block in the prefix cache and must not take it."""
    load = [submit(n, prompt_of(n // 2, 1 + 9 * (n // 2)), scores=None if n % 3 == 1 else n % 4) for n in range(8)]
    plain = {n: play(core_of(FakeRunner()), [submit(n, load[n].prompt_ids, scores=None)])[n] for n in range(8)}
    core = core_of(FakeDraftingRunner(0.6), mode, depth, chunk=10)
    for _ in range(2):
        outputs = play(core, load)
        for one in load:
            num_top = one.params.prompt_logprobs
            expected = [] if num_top is None else true_scores(one.prompt_ids, num_top)
            assert scores_of(outputs[one.seq_id]) == expected
            assert answer_of(outputs[one.seq_id]) == answer_of(plain[one.seq_id])
        load = [submit(100 + one.seq_id, one.prompt_ids, scores=one.params.prompt_logprobs) for one in load]
        plain = {100 + n: outputs for n, outputs in plain.items()}


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_come_chunk_by_chunk_and_before_the_first_token(chunk: int) -> None:
    runner = FakeRunner()
    prompt = prompt_of(1, 300)
    outputs = play(core_of(runner, SchedulerMode.AR_BATCH, chunk=chunk), [submit(0, prompt)])[0]
    assert scores_of(outputs) == true_scores(prompt, 2)
    assert max(plan.num_logits for plan in runner.plans) == min(chunk, MAX_SCORED_TOKENS)
    first_token = next(index for index, output in enumerate(outputs) if output.token_ids)
    assert not any(output.prompt_logprobs for output in outputs[first_token + 1 :])


@pytest.mark.parametrize("mode", SchedulerMode)
def test_nothing_is_generated_where_only_scores_are_wanted(mode: SchedulerMode) -> None:
    runner = FakeDraftingRunner()
    prompt = prompt_of(2, 20)
    depth = 0 if mode is SchedulerMode.AR_BATCH else 4
    outputs = play(core_of(runner, mode, depth), [submit(0, prompt, max_tokens=0), submit(1, (65,), max_tokens=0)])
    assert scores_of(outputs[0]) == true_scores(prompt, 2)
    assert scores_of(outputs[1]) == []
    for parts in outputs.values():
        assert answer_of(parts) == ([], [])
        assert parts[-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("mode", SchedulerMode)
@pytest.mark.parametrize("shares", [True, False])
def test_one_of_several_choices_has_them(mode: SchedulerMode, shares: bool) -> None:
    runner = FakeRunner()
    prompt = prompt_of(3, 41)
    load = [submit(choice, prompt, choice=choice, request=0) for choice in range(4)]
    outputs = play(core_of(runner, mode, shares=shares), load)
    assert scores_of(outputs[0]) == true_scores(prompt, 2)
    assert [scores_of(outputs[choice]) for choice in (1, 2, 3)] == [[], [], []]
    assert sum(len(row.scored_ids) for plan in runner.plans for row in plan.rows) == 40


def test_preempted_prompts_are_scored_once() -> None:
    """A cache that two of three can use: every preempted one comes back, and what was scored isn't again."""
    runner = FakeRunner(num_blocks=20)
    core = core_of(runner, SchedulerMode.COOPERATIVE, chunk=3, width=3)
    load = [submit(n, prompt_of(n, 20), max_tokens=25) for n in range(3)]
    outputs = play(core, load)
    for one in load:
        assert scores_of(outputs[one.seq_id]) == true_scores(one.prompt_ids, 2)
    assert core.status().num_preemptions > 0
    assert sum(len(row.scored_ids) for plan in runner.plans for row in plan.rows) == 3 * 19


def test_cancelled_halfway_leaves_nothing() -> None:
    core = core_of(FakeRunner(), SchedulerMode.AR_BATCH, chunk=8)
    core.add(submit(0, prompt_of(0, 30)))
    assert len(scores_of(core.step())) == 8
    core.cancel(Cancel(0))
    assert core.step() == []
    assert core.scheduler.table.blocks.num_used == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_line_that_has_no_score_fails_its_request_alone(bad: float) -> None:
    class Broken(FakeRunner):
        def run(self, plan: StepPlan) -> Logits:
            logits_WV = super().run(plan)
            line = 0
            for row in plan.rows:
                if row.seq_id == 0 and row.scored_ids:
                    logits_WV[line + len(row.scored_ids) - 1, 7] = bad
                line += row.num_logits
            return logits_WV

    core = core_of(Broken(), SchedulerMode.AR_BATCH, chunk=8)
    core.add(submit(0, prompt_of(0, 12)))
    core.add(submit(1, prompt_of(1, 12)))
    outputs = [output for _ in range(20) for output in core.step()]
    assert [output.seq_id for output in outputs if output.error] == [0]
    assert scores_of([output for output in outputs if output.seq_id == 1]) == true_scores(prompt_of(1, 12), 2)


def test_a_step_scores_so_many_tokens_of_all_prompts_and_others_pass() -> None:
    def prompt(seq_id: int, length: int, *, is_scored: bool) -> Seq:
        return Seq(seq_id, [1] * length, length, StopRules(1), num_unscored=length - 1 if is_scored else 0)

    line = [prompt(0, 100, is_scored=True), prompt(1, 100, is_scored=True), prompt(2, 5, is_scored=True)]
    line.append(prompt(3, 500, is_scored=False))
    shares = {share.sequence.seq_id: share.num_tokens for share in share_out(line, 400)}
    assert shares == {0: 100, 1: MAX_SCORED_TOKENS - 100, 3: 400 - MAX_SCORED_TOKENS}
