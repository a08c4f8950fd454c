"""What does a step cost beside the model's forward? Plan, next token, commit and hand-over, with a fake model.

Run: python -m benchmarks.engine_overhead
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.report import publish
from mtplx.batching.blocks import BlockAllocator
from mtplx.batching.state import SchedulerMode, StepPlan
from mtplx.model.runner import Logits
from mtplx.model.spec import ModelSpec, RunnerInfo
from mtplx.sampling_params import SamplingParams
from mtplx.server.admission import Limits
from mtplx.server.engine import Cancel, EngineCore, Submit
from mtplx.server.modes import make_scheduler
from mtplx.server.stream import RequestStream, Streams
from tests.fakes import fake_spec, load_byte_tokenizer

WIDTHS = (1, 8, 32)
MODES = (SchedulerMode.COOPERATIVE, SchedulerMode.AR_BATCH, SchedulerMode.MTP_BATCH)


class InstantRunner:
    """Logits that cost nothing: the same array every step, letters likely, the end never."""

    num_blocks = 8192
    block_size = 16

    def __init__(self) -> None:
        self.spec: ModelSpec = fake_spec(max_position=4096)
        self.info = RunnerInfo("fake", "cpu", "float32", exact=True, exact_note="a constant")
        self.seconds = 0.0
        logits = np.random.default_rng(0).normal(size=(64, self.spec.vocab_size)).astype(np.float32)
        logits[:, 128:] = -50
        self._logits_WV = logits

    def run(self, plan: StepPlan) -> Logits:
        return self._logits_WV[: plan.num_logits]

    def close(self) -> None: ...


class Stages:
    """Seconds of each stage of each step, by wrapping the engine's own calls."""

    def __init__(self, core: EngineCore) -> None:
        self.samples: dict[str, list[float]] = {"plan": [], "next_token": [], "commit": [], "step": []}
        scheduler, sampler = core.scheduler, core._sampler
        scheduler.plan = self._timed("plan", scheduler.plan)  # type: ignore[method-assign]
        scheduler.commit = self._timed("commit", scheduler.commit)  # type: ignore[method-assign]
        sampler.decode = self._timed("next_token", sampler.decode)  # type: ignore[method-assign]
        self.step = self._timed("step", core.step)

    def _timed(self, name, call):  # type: ignore[no-untyped-def]
        def timed(*args):  # type: ignore[no-untyped-def]
            start = time.perf_counter()
            result = call(*args)
            self.samples[name].append(time.perf_counter() - start)
            return result

        return timed


def measure(mode: SchedulerMode, width: int, steps: int, folder: Path) -> dict[str, float | int | str]:
    """Median microseconds of each stage over `steps` full-width steps after a warm-up."""
    runner = InstantRunner()
    blocks = BlockAllocator(runner.num_blocks, runner.block_size)
    core = EngineCore(runner, make_scheduler(mode, blocks, decode_batch_max=width, prefill_chunk_tokens=64))

    def send(message: Submit | Cancel) -> None:
        core.add(message) if isinstance(message, Submit) else core.cancel(message)

    limits = Limits(max_model_len=4096, cache_tokens=10**6, max_live=width, eos_ids=runner.spec.eos_ids)
    streams = Streams(load_byte_tokenizer(folder), limits, send=send, read_status=core.status)
    params = SamplingParams(temperature=0, max_tokens=steps + 200, stop=("never said",))
    opened = [streams.open([65 + k] * 100, params) for k in range(width)]
    while core.counters.last_step_width < width or core.counters.num_decode_tokens < width * 20:
        streams.dispatch(core.step())
    return asyncio.run(_timed_steps(core, streams, opened, mode, width, steps))


async def _timed_steps(
    core: EngineCore, streams: Streams, opened: list[RequestStream], mode: SchedulerMode, width: int, steps: int
) -> dict[str, float | int | str]:
    loop = asyncio.get_running_loop()
    stages = Stages(core)
    hand_over: list[float] = []
    for _ in range(steps):
        outputs = stages.step()
        status = core.status()
        done = asyncio.Event()
        start = time.perf_counter()
        loop.call_soon_threadsafe(streams.dispatch, outputs)
        loop.call_soon_threadsafe(done.set)
        await done.wait()
        hand_over.append(time.perf_counter() - start)
        assert status.last_step_width == width
    for stream in opened:
        stream.close()
    medians = {name: statistics.median(samples) * 1e6 for name, samples in stages.samples.items()}
    own = medians["step"] - medians["next_token"] + statistics.median(hand_over) * 1e6
    limit = 1000 + 50 * width
    return {
        "mode": mode.value,
        "width": width,
        "plan_us": medians["plan"],
        "next_token_us": medians["next_token"],
        "commit_us": medians["commit"],
        "step_us": medians["step"],
        "hand_over_us": statistics.median(hand_over) * 1e6,
        "own_us": own,
        "limit_us": limit,
        "own/limit": own / limit,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        rows = [measure(mode, width, options.steps, Path(folder)) for mode in MODES for width in WIDTHS]
    publish("engine-overhead", rows, model="fake, 260 ids, greedy, one stop string", output=options.output)


if __name__ == "__main__":
    main()
