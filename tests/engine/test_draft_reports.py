"""What the status says of drafts: the reason when a step has none, and what counts as a draft."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from mtplx.batching.blocks import BlockAllocator
from mtplx.batching.state import DraftRequest, SchedulerMode, StopRules
from mtplx.sampling_params import SamplingParams
from mtplx.server.engine import EngineCore, Submit
from mtplx.server.modes import make_scheduler, make_speculator
from tests.fakes import FakeDraftingRunner, FakeRunner, flat_costs, saying


def core_of(runner: FakeRunner, mode: SchedulerMode, depth: int | None, *, width: int = 4) -> EngineCore:
    """Depth None is auto."""
    speculator = make_speculator(depth, flat_costs() if depth is None else None, prefill_chunk_tokens=16)
    scheduler = make_scheduler(
        mode,
        BlockAllocator(runner.num_blocks, runner.block_size),
        decode_batch_max=width,
        prefill_chunk_tokens=16,
        speculator=speculator,
    )
    return EngineCore(runner, scheduler, clock=lambda: 0.0)


def add(
    core: EngineCore, seq_id: int = 0, *, prompt_len: int = 4, max_tokens: int = 12, cap: int | None = None
) -> None:
    params = SamplingParams(temperature=0.0, ignore_eos=True, draft_depth=cap)
    prompt = tuple(range(65, 65 + prompt_len))
    core.add(Submit(seq_id, prompt, params, seed=0, choice=0, stops=StopRules(max_tokens)))


def reasons(core: EngineCore) -> list[str | None]:
    """After every step, until the work is done."""
    found = []
    while core.has_work:
        core.step()
        drafting = core.status().drafting
        assert not (drafting.why_none and any(drafting.last_depths))
        assert drafting.why_none or any(drafting.last_depths) or not drafting.last_depths
        found.append(drafting.why_none)
    return found


@pytest.mark.parametrize(
    ("runner", "mode", "why"),
    [
        (FakeRunner(), SchedulerMode.AR_BATCH, "the model has no draft head"),
        (FakeDraftingRunner(), SchedulerMode.AR_BATCH, "ar_batch never drafts"),
        (FakeDraftingRunner(), SchedulerMode.SERIAL, "the draft depth is 0: --draft-depth asks for more"),
    ],
    ids=("headless", "ar_batch", "depth 0"),
)
def test_where_nothing_can_draft_the_reason_is_always_there(runner: FakeRunner, mode: SchedulerMode, why: str) -> None:
    core = core_of(runner, mode, 0)
    assert core.status().drafting.why_none == why
    add(core)
    assert set(reasons(core)) == {why}


def test_drafts_and_steps_without_decoding_need_no_reason() -> None:
    core = core_of(FakeDraftingRunner(0.0), SchedulerMode.MTP_BATCH, 2)
    add(core, max_tokens=9)
    assert reasons(core) == [None] * 8 + ["no request had room or leave for a draft"], "its last token has no room"


@pytest.mark.parametrize("depth", [3, None])
def test_a_request_that_wants_no_drafts_is_a_reason_and_its_cost_none(depth: int | None) -> None:
    core = core_of(FakeDraftingRunner(1.0), SchedulerMode.MTP_BATCH, depth)
    add(core, cap=0)
    assert set(reasons(core)) == {None, "no request had room or leave for a draft"}


def test_a_head_that_fails_is_the_reason_and_soon_for_good() -> None:
    def fail(requests: Sequence[DraftRequest]) -> None:
        raise RuntimeError("no head today")

    core = core_of(FakeDraftingRunner(head_fault=fail), SchedulerMode.MTP_BATCH, 2)
    add(core, max_tokens=40)
    found = reasons(core)
    assert Counter(found) == {None: 1, "the draft head failed": 15, "the draft head failed too often": 24}
    assert core.status().drafting.num_failed == 16


def test_a_head_that_sees_the_end_coming_drafts_nothing() -> None:
    runner = FakeDraftingRunner(1.0, script=saying("a", prompt_len=4))
    core = core_of(runner, SchedulerMode.MTP_BATCH, 4)
    params = SamplingParams(temperature=0.0)
    core.add(Submit(0, (65, 66, 67, 68), params, seed=0, choice=0, stops=StopRules(9, frozenset({256}))))
    assert reasons(core) == [None, "the draft head expects the end of the answer"]


def test_a_cache_without_room_for_drafts_is_the_reason() -> None:
    """At the end of the last block but one token there is nowhere to put a guess."""
    core = core_of(FakeDraftingRunner(0.0, num_blocks=5), SchedulerMode.MTP_BATCH, 4)
    add(core, prompt_len=5, max_tokens=16)
    full = "the head's cache is still being built, or no blocks or budget are left for drafts"
    assert Counter(reasons(core))[full] == 1


def test_a_prompts_last_token_is_neither_decoded_nor_a_draft_of_depth_0() -> None:
    """Prompts of 17 tokens in chunks of 16: the plan's row of one token looks like that of a next token."""
    core = core_of(FakeDraftingRunner(1.0), SchedulerMode.MTP_BATCH, 3)
    for seq_id in range(3):
        add(core, seq_id, prompt_len=17 + 16 * seq_id, max_tokens=9)
    while core.has_work:
        core.step()
    status = core.status()
    assert status.num_prefill_tokens == 17 + 33 + 49
    assert status.num_decode_tokens + status.drafts.num_accepted_tokens == 3 * 8
    assert status.num_decode_tokens == sum(status.drafts.depth_histogram.values())
    assert status.drafts.depth_histogram[0] == 0
