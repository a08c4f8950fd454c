"""The soak: 500 requests that leave out nothing a request may ask, in every mode, twice; each answer is the oracle's.

Arrivals and cancels are at random steps, beginnings are shared, and the cache is so small that sequences are preempted.
Everything follows from seeds, and steps are all the time there is.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from mtplx.batching.blocks import BlockAllocator
from mtplx.batching.state import FinishReason, SchedulerMode, StopRules
from mtplx.decode.logprobs import TokenLogprobs
from mtplx.sampling_params import SamplingParams
from mtplx.server.engine import Cancel, EngineCore, Submit
from mtplx.server.modes import make_scheduler, make_speculator
from tests.fakes import EOS, FakeDraftingRunner, FakeRunner, flat_costs

NUM_REQUESTS = 500
WIDTH_1 = (SchedulerMode.SERIAL, SchedulerMode.HYPER)
DEPTHS: dict[SchedulerMode, int | None] = {SchedulerMode.AR_BATCH: 0, SchedulerMode.MTP_BATCH: None}  # None is auto


@dataclass(slots=True)
class Told:
    """What came out for one choice. `is_cancelled` says that its client left."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    is_cancelled: bool = False

    def is_beginning_of(self, other: Told) -> bool:
        pairs = (
            (self.token_ids, other.token_ids),
            (self.logprobs, other.logprobs),
            (self.prompt_logprobs, other.prompt_logprobs),
        )
        return all(mine == theirs[: len(mine)] for mine, theirs in pairs)


@dataclass(frozen=True, slots=True)
class Request:
    """All choices of a request, and after how many steps its client leaves, if it does."""

    choices: tuple[Submit, ...]
    leaves_after: int | None


def wishes(rng: random.Random) -> SamplingParams:
    """Each field is asked for by some; most ask for little."""

    def some(share: float, value: object, otherwise: object) -> object:
        return value if rng.random() < share else otherwise

    wanted = {
        "temperature": rng.choice([0.0, 0.0, 0.7, 1.0, 1.4]),
        "top_k": some(0.1, rng.randint(1, 20), 0),
        "top_p": some(0.2, rng.uniform(0.3, 1.0), 1.0),
        "min_p": some(0.1, 0.05, 0.0),
        "presence_penalty": some(0.15, rng.uniform(-2, 2), 0.0),
        "frequency_penalty": some(0.15, rng.uniform(-2, 2), 0.0),
        "repetition_penalty": some(0.15, 1.3, 1.0),
        "logit_bias": some(0.15, {rng.randint(32, 120): rng.choice([-100.0, -2.0, 4.0]) for _ in range(3)}, {}),
        "min_tokens": some(0.15, rng.randint(1, 3), 0),
        "stop_token_ids": some(0.2, tuple(rng.sample(range(32, 120), 25)), ()),
        "ignore_eos": rng.random() < 0.1,
        "logprobs": some(0.3, rng.choice([0, 1, 5, 20]), None),
        "prompt_logprobs": some(0.1, rng.choice([0, 2]), None),
        "draft_depth": some(0.2, rng.randint(0, 8), None),
    }
    return SamplingParams(**wanted)  # type: ignore[arg-type]


def make_load(seed: int = 6) -> list[Request]:
    rng = random.Random(seed)
    stems = [tuple(rng.randint(32, 120) for _ in range(rng.choice([8, 16, 21, 33]))) for _ in range(8)]
    requests = []
    seq_ids = iter(range(10_000))
    for request in range(NUM_REQUESTS):
        params = wishes(rng)
        stem = rng.choice(stems) if rng.random() < 0.6 else ()
        own = tuple(rng.randint(32, 120) for _ in range(rng.choice([1, 2, 5, 12, 20])))
        max_tokens = max(params.min_tokens, rng.choice([1, 2, 4, 8, 12, 20]))
        stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else {EOS})
        first = Submit(
            seq_id=0,
            prompt_ids=(*stem, *own)[-40:],
            params=params,
            seed=rng.randint(0, 2**53),
            choice=0,
            stops=StopRules(max_tokens, stop_ids),
            cache_salt=rng.choice([b"", b"", b"", b"another client"]),
            cohort=rng.choice([b"", b"", b"named"]),
            request=request,
            priority=rng.choice([0, 0, 0, 5, -5]),
        )
        n = rng.choice([1, 1, 1, 1, 2, 3])
        choices = tuple(replace(first, seq_id=next(seq_ids), choice=choice) for choice in range(n))
        requests.append(Request(choices, rng.choice([0, 1, 2, 4, 9, 25]) if rng.random() < 0.2 else None))
    return requests


def core_of(
    mode: SchedulerMode, *, runner: FakeRunner, depth: int | None, width: int, chunk: int, shares: bool
) -> EngineCore:
    scheduler = make_scheduler(
        mode,
        BlockAllocator(runner.num_blocks, runner.block_size),
        decode_batch_max=None if mode is SchedulerMode.HYPER else width,
        prefill_chunk_tokens=chunk,
        speculator=make_speculator(depth, flat_costs() if depth is None else None, prefill_chunk_tokens=chunk),
        prefix_salt=b"soak" if shares else None,
    )
    return EngineCore(runner, scheduler, clock=lambda: 0.0)


def play(core: EngineCore, requests: Sequence[Request], *, gap: float, seed: int) -> dict[int, Told]:
    """One request after the other comes, after `gap` steps on average, and leaves when it will; checks as it goes."""
    rng = random.Random(seed)
    told: defaultdict[int, Told] = defaultdict(Told)
    arriving = iter(requests)
    leaving: defaultdict[int, list[Request]] = defaultdict(list)
    next_arrival, now, is_over = 0.0, 0, False
    while not is_over or core.has_work:
        while not is_over and next_arrival <= now:
            request = next(arriving, None)
            is_over = request is None
            if request is not None:
                _arrive(core, request)
                next_arrival += rng.expovariate(1 / gap)
                if request.leaves_after is not None:
                    leaving[now + request.leaves_after].append(request)
        for request in leaving.pop(now, ()):
            _leave(core, request, told)
        _step(core, told)
        core.scheduler.table.check()
        now += 1
    core._sampler.check()
    return dict(told)


def _arrive(core: EngineCore, request: Request) -> None:
    for submit in request.choices:
        core.add(submit)


def _leave(core: EngineCore, request: Request, told: dict[int, Told]) -> None:
    """A client leaves with all of its choices, whatever has become of them by then."""
    for submit in request.choices:
        told[submit.seq_id].is_cancelled = told[submit.seq_id].finish_reason is None
        core.cancel(Cancel(submit.seq_id))


def _step(core: EngineCore, told: dict[int, Told]) -> None:
    for output in core.step():
        answer = told[output.seq_id]
        assert output.error is None, output.error
        assert not answer.is_cancelled, "it heard of a client that had left"
        assert answer.finish_reason is None, "it ended twice"
        answer.token_ids += output.token_ids
        answer.logprobs += output.logprobs
        answer.prompt_logprobs += output.prompt_logprobs
        answer.finish_reason = output.finish_reason


def assert_as_at_the_start(core: EngineCore) -> None:
    status = core.status()
    assert (status.num_running, status.num_waiting, status.num_blocks_used) == (0, 0, 0)
    assert not any((core._sampler._entries, core._deadlines_s, core.counters.started_at_s))
    assert status.num_failed_steps == 0
    core.scheduler.table.check()


@pytest.fixture(scope="module")
def load() -> list[Request]:
    return make_load()


@pytest.fixture(scope="module")
def oracle(load: list[Request]) -> dict[int, Told]:
    """Each choice alone, serial, without drafts, in one chunk, with nothing shared; nobody leaves."""
    answers: dict[int, Told] = {}
    for submit in (submit for request in load for submit in request.choices):
        core = core_of(SchedulerMode.SERIAL, runner=FakeRunner(), depth=0, width=1, chunk=512, shares=False)
        answers |= play(core, [Request((submit,), None)], gap=1.0, seed=0)
    assert {told.finish_reason for told in answers.values()} == {FinishReason.STOP, FinishReason.LENGTH}
    return answers


@pytest.mark.parametrize("mode", SchedulerMode)
def test_soak(mode: SchedulerMode, load: list[Request], oracle: dict[int, Told]) -> None:
    """Twice on one engine: the second time in another order, by when the cache holds what the first time left."""
    runner = FakeDraftingRunner(0.6, num_blocks=24)
    core = core_of(mode, runner=runner, depth=DEPTHS.get(mode, 4), width=6, chunk=8, shares=True)
    num_cancelled = 0
    for round_number, requests in enumerate((load, load[::-1])):
        gap = 14.0 if mode in WIDTH_1 else 3.0
        answers = play(core, requests, gap=gap, seed=round_number)
        assert_as_at_the_start(core)
        for seq_id, expected in oracle.items():
            if answers[seq_id].is_cancelled:
                num_cancelled += 1
                assert answers[seq_id].is_beginning_of(expected)
            else:
                assert answers[seq_id] == expected
    assert num_cancelled > 100
    assert (core.status().num_preemptions > 0) == (mode not in WIDTH_1)
    assert core.status().prefix.num_hits > 0
    assert (core.status().drafts.num_accepted_tokens > 0) == (mode is not SchedulerMode.AR_BATCH)
