"""Drives an engine without a server: a closed loop of so many clients, each sending its next request when one ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mtplx.batching.blocks import BlockAllocator
from mtplx.batching.drafting import Speculator
from mtplx.batching.state import FinishReason, SchedulerMode
from mtplx.model.runner import Runner
from mtplx.server.engine import EngineCore, Submit
from mtplx.server.modes import make_scheduler


def run_closed_loop(
    runner: Runner,
    submits: Sequence[Submit],
    *,
    mode: SchedulerMode,
    concurrency: int,
    chunk: int,
    speculator: Speculator | None = None,
    prefix_salt: bytes | None = None,
) -> list[tuple[int, ...]]:
    """The emitted ids of every request, in the order of `submits`, with at most `concurrency` of them live at once."""
    blocks = BlockAllocator(runner.num_blocks, runner.block_size)
    scheduler = make_scheduler(
        mode,
        blocks,
        decode_batch_max=concurrency,
        prefill_chunk_tokens=chunk,
        speculator=speculator,
        prefix_salt=prefix_salt,
    )
    core = EngineCore(runner, scheduler)
    todo = [replace(submit, seq_id=index) for index, submit in enumerate(submits)]
    emitted: list[list[int]] = [[] for _ in todo]
    num_live = 0
    while todo or core.has_work:
        while todo and num_live < concurrency:
            core.add(todo.pop(0))
            num_live += 1
        for output in core.step():
            assert output.finish_reason is not FinishReason.ERROR, output.error
            emitted[output.seq_id] += output.token_ids
            num_live -= output.finish_reason is not None
    core.scheduler.table.check()
    assert blocks.num_used == 0
    return [tuple(ids) for ids in emitted]
