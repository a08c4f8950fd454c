"""A prefix that is shared changes no answer and no bit: in every mode, with drafts, cancels and preemption."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest
import torch

from mtplx.batching.blocks import BlockAllocator
from mtplx.batching.state import DraftRequest, SchedulerMode, StepPlan, StopRules
from mtplx.model.native.runner import NativeRunner
from mtplx.model.runner import Choose, Logits, Runner
from mtplx.model.torch.loader import load_torch_runner
from mtplx.model.torch.runner import TorchRunner
from mtplx.model.weights import ModelFolder
from mtplx.sampling_params import SamplingParams
from mtplx.server.engine import Cancel, EngineCore, Submit
from mtplx.server.modes import make_scheduler, make_speculator
from tests.drivers import run_closed_loop
from tests.engine.test_drafts import Answer, play, wishes
from tests.engine.test_identity_drafts_native import write_trunk_head
from tests.fakes import EOS, FakeDraftingRunner, FakeRunner, flat_costs
from tests.native_models import load_native, random_ids, write_native_model
from tests.tiny_heads import load_tiny_runner, write_tiny_mtp_model, write_whispering_model
from tests.tiny_models import VOCAB_SIZE, write_tiny_model

MODES = tuple(SchedulerMode)
SALT = b"the model"


def core_of(
    runner: Runner, mode: SchedulerMode, depth: int | None = 0, *, width: int = 4, chunk: int = 16, shares: bool = True
) -> EngineCore:
    speculator = None
    if mode is not SchedulerMode.AR_BATCH:
        speculator = make_speculator(depth, None if depth is not None else flat_costs(), prefill_chunk_tokens=chunk)
    scheduler = make_scheduler(
        mode,
        BlockAllocator(runner.num_blocks, runner.block_size),
        decode_batch_max=width,
        prefill_chunk_tokens=chunk,
        speculator=speculator,
        prefix_salt=SALT if shares else None,
    )
    return EngineCore(runner, scheduler, clock=lambda: 0.0)


def shared_load() -> list[Submit]:
    """Prompts with nothing to nearly all of 61 tokens in common, under every wish; three of them have four choices."""
    rng = random.Random(5)
    common = [rng.randint(32, 120) for _ in range(61)]
    submits: list[Submit] = []
    for number in range(20):
        params = wishes()[number % 7]
        prompt = (*common[: rng.choice([0, 4, 15, 32, 61])], *(rng.randint(32, 120) for _ in range(rng.choice([1, 9]))))
        stops = StopRules(max(params.min_tokens, rng.choice([1, 6, 20])), frozenset({*params.stop_token_ids, EOS}))
        for choice in range(4 if number in (3, 9, 16) else 1):
            submits.append(Submit(len(submits), prompt, params, seed=number, choice=choice, stops=stops))
    return submits


@pytest.fixture(scope="module")
def oracle() -> dict[int, Answer]:
    answers: dict[int, Answer] = {}
    for submit in shared_load():
        core = core_of(FakeRunner(), SchedulerMode.SERIAL, chunk=512, shares=False)
        answers |= play(core, [submit], concurrency=1)
    return answers


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("depth", [0, 4, None])
def test_answers_are_the_oracles(mode: SchedulerMode, depth: int | None, oracle: dict[int, Answer]) -> None:
    """The fake head asserts that every slot it needs is built from the right tokens, shared blocks included."""
    for concurrency, chunk in ((1, 64), (5, 3), (16, 16)):
        core = core_of(FakeDraftingRunner(0.6), mode, depth, width=concurrency, chunk=chunk)
        assert play(core, shared_load(), concurrency=concurrency, seed=chunk) == oracle
        assert core.status().prefix.num_saved_tokens > 300
        assert core.status().num_prefill_tokens + core.status().prefix.num_saved_tokens == sum(
            len(submit.prompt_ids) for submit in shared_load()
        )


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in (SchedulerMode.SERIAL, SchedulerMode.HYPER)])
@pytest.mark.parametrize("num_blocks", [23, 25])
def test_preemption_comes_back_through_the_cache_and_changes_no_answer(
    mode: SchedulerMode, num_blocks: int, oracle: dict[int, Answer]
) -> None:
    core = core_of(FakeDraftingRunner(0.6, num_blocks=num_blocks), mode, 4, width=6, chunk=8)
    assert play(core, shared_load(), concurrency=8) == oracle
    assert core.status().num_preemptions > 0
    assert core.status().prefix.num_evictions > 0


@pytest.mark.parametrize("mode", MODES)
def test_cancels_at_any_moment_leave_the_others_answers(mode: SchedulerMode, oracle: dict[int, Answer]) -> None:
    core = core_of(FakeDraftingRunner(0.6, num_blocks=40), mode, 4, width=5, chunk=8)
    rng = random.Random(7)
    outputs: dict[int, list[int]] = {submit.seq_id: [] for submit in shared_load()}
    cancelled = set()
    for submit in shared_load():
        core.add(submit)
    while core.has_work:
        seq_id = rng.choice(list(outputs))
        if rng.random() < 0.2 and core.scheduler.table.get(seq_id) is not None:
            cancelled.add(seq_id)
            core.cancel(Cancel(seq_id))
        for output in core.step():
            outputs[output.seq_id] += output.token_ids
        core.scheduler.table.check()
    assert len(cancelled) > 3
    for seq_id, token_ids in outputs.items():
        expected = oracle[seq_id][0]
        assert tuple(token_ids) == (expected[: len(token_ids)] if seq_id in cancelled else expected)


@pytest.mark.parametrize("depth", [1, 4])
def test_a_hit_drafts_as_a_miss_does(depth: int) -> None:
    """The head's slots of a shared prefix aren't built again, and the acceptance is the same to the last draft."""
    params = SamplingParams(temperature=0.0, ignore_eos=True)
    counts, num_built = [], []
    for shares in (False, True):
        runner = FakeDraftingRunner(0.6)
        core = core_of(runner, SchedulerMode.MTP_BATCH, depth, shares=shares)
        for seq_id in range(2):
            prompt = (*range(40, 101), seq_id)
            play(core, [Submit(seq_id, prompt, params, 0, 0, StopRules(30))], concurrency=1)
        counts.append((core.counters.drafts.num_draft_tokens, core.counters.drafts.num_accepted_tokens))
        num_built.append(sum(len(request.token_ids) for call in runner.draft_calls for request in call))
    assert counts[0] == counts[1]
    assert num_built[0] - num_built[1] == 60 - 1, "fifteen blocks of four, and slot 0 is never built"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"), "qwen3")
    runner = load_torch_runner(
        folder, device="cpu", dtype="float64", kv_cache_tokens=1024, max_model_len=128, threads=1
    )
    yield runner
    runner.close()


def model_submits() -> list[Submit]:
    """Six prompts over one beginning of 50 tokens, greedy and seeded."""
    common = random_ids(50, VOCAB_SIZE)
    return [
        Submit(
            0,
            (*common[: 50 - 9 * k], *random_ids(5 + k, VOCAB_SIZE, seed=k)),
            SamplingParams(temperature=temperature, max_tokens=8),
            seed=k,
            choice=0,
            stops=StopRules(8),
        )
        for temperature in (0.0, 0.9)
        for k in range(6)
    ]


@pytest.mark.parametrize("mode", MODES)
def test_the_torch_runner_agrees(tiny: Runner, mode: SchedulerMode) -> None:
    expected = run_closed_loop(tiny, model_submits(), mode=SchedulerMode.SERIAL, concurrency=1, chunk=512)
    found = run_closed_loop(tiny, model_submits(), mode=mode, concurrency=3, chunk=16, prefix_salt=SALT)
    assert found == expected


class Recorded:
    """A runner that keeps the bits of all logits, by the sequence and position that they are for, and all guesses."""

    def __init__(self, runner: NativeRunner | TorchRunner) -> None:
        self.spec, self.info = runner.spec, runner.info
        self.num_blocks, self.block_size = runner.num_blocks, runner.block_size
        self.max_draft_depth = runner.max_draft_depth
        self.bits: dict[tuple[int, int], bytes] = {}
        self.guesses: list[tuple[int, ...]] = []
        self._runner = runner

    def run(self, plan: StepPlan) -> Logits:
        logits_WV = self._runner.run(plan)
        lines = iter(logits_WV)
        for row in plan.rows:
            for position in range(row.end - row.num_logits, row.end):
                self.bits[row.seq_id, position] = next(lines).tobytes()
        return logits_WV

    def draft(self, requests: Sequence[DraftRequest], choose: Choose) -> list[tuple[int, ...]]:
        drafts = self._runner.draft(requests, choose)
        self.guesses += [tuple(token_ids) for token_ids in drafts if token_ids]
        return drafts

    def close(self) -> None:
        self._runner.close()


@pytest.fixture(scope="module", params=["auto", "none"])
def native(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeRunner]:
    folder = tmp_path_factory.mktemp("native")
    runner = load_native(write_native_model(folder / "model", "llama"), folder, quantization=request.param)
    yield runner
    runner.close()


def bits_of(core: EngineCore, recorded: Recorded, submits: Sequence[Submit]) -> dict[tuple[int, int], bytes]:
    recorded.bits.clear()
    play(core, submits, concurrency=len(submits))
    return dict(recorded.bits)


@pytest.mark.parametrize("mode", MODES)
def test_a_hit_has_the_bits_of_a_miss_on_the_native_runner(native: NativeRunner, mode: SchedulerMode) -> None:
    """First computed, then taken over from a neighbour that was cancelled in its prompt, then whole from the cache."""
    recorded = Recorded(native)
    prompt = tuple(random_ids(120, VOCAB_SIZE))
    params = SamplingParams(temperature=0.7, max_tokens=12)
    submit = Submit(0, prompt, params, seed=1, choice=0, stops=StopRules(12))
    missed = bits_of(core_of(recorded, mode, shares=False), recorded, [submit])
    core = core_of(recorded, mode, chunk=16)
    core.add(Submit(7, prompt, params, seed=2, choice=0, stops=StopRules(12)))
    for _ in range(4):
        core.step()
    core.cancel(Cancel(7))
    for num_saved in (64, 112):
        before = core.status().prefix.num_saved_tokens
        assert bits_of(core, recorded, [submit]) == missed
        assert core.status().prefix.num_saved_tokens - before == num_saved


@pytest.fixture(scope="module", params=["native", "torch"])
def with_head(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """A small model with a head that is sometimes right; torch's has two modules, each with a cache of its own."""
    folder = tmp_path_factory.mktemp("head")
    runner: NativeRunner | TorchRunner
    if request.param == "torch":
        runner = load_tiny_runner(write_tiny_mtp_model(folder, "deepseek_v3", 2))
    else:
        sizes = {"hidden_size": 64, "intermediate_size": 96}
        model = ModelFolder(
            write_whispering_model(folder / "model", "llama", dtype=torch.float32, **sizes), "w", "test"
        )
        runner = load_native(model, folder, head=write_trunk_head(folder / "head.safetensors", model, echo=0.3))
    yield Recorded(runner)
    runner.close()


def test_a_real_head_guesses_after_a_hit_as_after_a_miss(with_head: Recorded) -> None:
    """Its slots of the shared blocks and the hidden states that it starts from are those of the first request."""
    common = tuple(random_ids(75, VOCAB_SIZE))
    params = SamplingParams(temperature=0.0, ignore_eos=True)
    found = []
    for shares in (False, True):
        core = core_of(with_head, SchedulerMode.MTP_BATCH, 3, shares=shares)
        for own in ((5, 6), (7, 8, 9)):
            with_head.guesses.clear()
            bits = bits_of(core, with_head, [Submit(0, (*common, *own), params, 0, 0, StopRules(24))])
        found.append((list(with_head.guesses), core.counters.drafts.num_accepted_tokens))
        if with_head.info.runner == "native":
            found[-1] += (bits,)
    assert found[0] == found[1]
    assert core.status().prefix.num_saved_tokens == 64
    assert core.counters.drafts.num_accepted_tokens > 0


def test_neighbours_of_every_kind_change_no_bit_of_a_hit(native: NativeRunner) -> None:
    recorded = Recorded(native)
    submits = [
        Submit(seq_id, submit.prompt_ids, submit.params, submit.seed, 0, submit.stops)
        for seq_id, submit in enumerate(model_submits())
    ]
    missed: dict[tuple[int, int], bytes] = {}
    for submit in submits:
        missed |= bits_of(core_of(recorded, SchedulerMode.SERIAL, shares=False), recorded, [submit])
    core = core_of(recorded, SchedulerMode.MTP_BATCH, width=6)
    for _ in range(2):
        assert bits_of(core, recorded, submits) == missed
    assert core.status().prefix.num_saved_tokens > 200
