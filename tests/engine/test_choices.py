"""The choices of one request compute its prompt once, but for the block that isn't full."""

from __future__ import annotations

import pytest

from mtplx.batching.state import SchedulerMode
from tests.engine.test_prompt_scores import answer_of, core_of, play, prompt_of, submit
from tests.fakes import FakeDraftingRunner, FakeRunner


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("prompt_len", [1, 4, 5, 23, 70])
@pytest.mark.parametrize("mode", SchedulerMode)
def test_with_the_prefix_cache_on_and_off(mode: SchedulerMode, prompt_len: int, shares: bool) -> None:
    """Chunks of one step are far longer than most of these prompts: nothing but the rest of a block comes twice."""
    runner = FakeDraftingRunner(0.6)
    prompt = prompt_of(prompt_len, prompt_len)
    load = [submit(n, prompt, scores=None, choice=n, request=0) for n in range(4)]
    alone = [answer_of(play(core_of(FakeRunner()), [one])[one.seq_id]) for one in load]
    core = core_of(runner, mode, 0 if mode is SchedulerMode.AR_BATCH else 4, chunk=64, shares=shares)
    outputs = play(core, load)
    assert [answer_of(outputs[n]) for n in range(4)] == alone
    rest = 1 + (prompt_len - 1) % runner.block_size
    assert core.status().num_prefill_tokens == prompt_len + 3 * rest
    assert (core.status().prefix.is_on, core.status().prefix.num_queried_tokens > 0) == (shares, shares)


def test_others_share_nothing_where_the_cache_is_off() -> None:
    core = core_of(FakeRunner(), SchedulerMode.AR_BATCH, chunk=64, shares=False)
    prompt = prompt_of(1, 33)
    play(core, [submit(n, prompt, scores=None, request=n // 2) for n in range(4)] + [submit(4, prompt, scores=None)])
    assert core.status().num_prefill_tokens == 2 * (33 + 1) + 33
