"""Between the event loop and the worker: one sequence that breaks on the way costs no other its outputs."""

from __future__ import annotations

import asyncio
import queue
from dataclasses import replace
from pathlib import Path

import pytest

from mtplx.batching.blocks import BlockAllocator
from mtplx.batching.state import FinishReason, SchedulerMode, StopRules
from mtplx.errors import GenerationError
from mtplx.sampling_params import SamplingParams
from mtplx.server.admission import Limits
from mtplx.server.choice_text import Delta
from mtplx.server.engine import Cancel, EngineCore, SequenceOutput, Submit
from mtplx.server.modes import make_scheduler
from mtplx.server.stream import RequestStream, Streams
from mtplx.server.worker import Stop, Worker
from tests.fakes import EOS, FakeRunner, load_byte_tokenizer
from tests.faults import PATIENCE_S

GOOD = Submit(1, (65, 66), SamplingParams(), seed=1, choice=0, stops=StopRules(3))


def core() -> EngineCore:
    runner = FakeRunner()
    blocks = BlockAllocator(runner.num_blocks, runner.block_size)
    return EngineCore(
        runner, make_scheduler(SchedulerMode.AR_BATCH, blocks, decode_batch_max=4, prefill_chunk_tokens=8)
    )


def test_a_submit_that_breaks_fails_alone_and_the_worker_lives() -> None:
    worker = Worker(core())
    delivered: queue.SimpleQueue[list[SequenceOutput]] = queue.SimpleQueue()
    worker.start(delivered.put, on_death=lambda error: pytest.fail(str(error)))
    worker.put(replace(GOOD, seq_id=0, params=SamplingParams(logit_bias={10**6: 1.0})))
    worker.put(GOOD)
    [broken] = delivered.get(timeout=PATIENCE_S)
    assert (broken.seq_id, broken.finish_reason, broken.token_ids) == (0, FinishReason.ERROR, ())
    assert "bias" not in str(broken.error)
    num_tokens = 0
    while num_tokens < 3:
        [output] = delivered.get(timeout=PATIENCE_S)
        num_tokens += len(output.token_ids)
    assert output.finish_reason is FinishReason.LENGTH
    assert worker.is_alive
    worker.put(Stop())
    assert worker.join(PATIENCE_S)


def test_an_output_that_cannot_be_told_ends_its_stream_and_no_other(tmp_path: Path) -> None:
    """The first one's token is none of the tokenizer's; both outputs come in one step."""

    async def test() -> None:
        sent: list[Submit | Cancel] = []
        limits = Limits(max_model_len=64, cache_tokens=64, max_live=4, eos_ids=frozenset({EOS}))
        streams = Streams(load_byte_tokenizer(tmp_path), limits, send=sent.append, read_status=core().status)
        first, second = streams.open_many([(65,), (66,)], SamplingParams(max_tokens=1))
        ids = [message.seq_id for message in sent]
        streams.dispatch(
            [
                SequenceOutput(ids[0], (2**70,), finish_reason=None),
                SequenceOutput(ids[1], (67,), finish_reason=FinishReason.LENGTH),
            ]
        )
        assert [delta.text for delta in await asyncio.wait_for(read(second), PATIENCE_S)] == ["C"]
        with pytest.raises(GenerationError, match="the server failed"):
            await asyncio.wait_for(read(first), PATIENCE_S)
        assert sent[2:] == [Cancel(ids[0])]
        assert streams.num_live == 0

    asyncio.run(test())


async def read(stream: RequestStream) -> list[Delta]:
    return [delta async for delta in stream]
