"""The native draft head: what it guesses is what the plain graph gives, whatever shares its calls and cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mtplx.batching.state import DraftRequest, Row, StepPlan
from mtplx.errors import ModelError
from mtplx.model.head_file import HeadFile, write_head
from mtplx.model.native.library import NativeCallError
from mtplx.model.native.pack import open_source
from mtplx.model.native.reference import reference_draft_hidden, reference_hidden
from mtplx.model.native.runner import NativeRunner
from mtplx.model.native.shape import read_shape
from mtplx.model.native.slots import head_file_name, head_slots, model_slots
from mtplx.model.runner import Logits, drafting_runner
from mtplx.model.weights import ModelFolder
from tests.engine.draft_driver import draft_together, greedy
from tests.native_heads import INTERMEDIATE, write_echoing_head, write_random_head, write_whispering
from tests.native_models import all_logits, load_native, random_ids, write_native_model
from tests.tiny_models import VOCAB_SIZE

DRAFT_IDS = tuple(range(1, VOCAB_SIZE, 3))
LENGTHS = (3, 16, 33, 50)
EXACT: dict[str, Any] = {"quantization": "none", "head_quantization": "none"}


class Reference:
    """The logits of model and head by the plain graph, in float64."""

    def __init__(self, model: ModelFolder, head: HeadFile) -> None:
        self._shape = read_shape(model.path)
        source = open_source(model, self._shape)
        self._trunk = {slot.name: source[slot.name].floats() for slot in model_slots(self._shape)}
        num_blocks, intermediate = head.metadata.num_blocks, head.intermediate_size
        self._head_shape = replace(self._shape, num_layers=num_blocks, intermediate=intermediate)
        self._head = {slot.name: head.floats(head_file_name(slot)) for slot in head_slots(self._head_shape)}
        output = self._trunk["embedding" if self._shape.is_tied else "head"]
        self.ids = np.arange(len(output)) if head.draft_vocab is None else head.draft_vocab.astype(np.int64)
        self._output = output[self.ids].astype(np.float64)

    def draft_logits(self, known: Sequence[int], guesses: Sequence[int]) -> npt.NDArray[np.float64]:
        """logits_KW of the slots of the last known token and of each guess."""
        hidden_ND = reference_hidden(self._trunk, self._shape, known[:-1])
        embedding = self._trunk["embedding"]
        made = reference_draft_hidden(self._head, self._head_shape, embedding, hidden_ND, [*known, *guesses])
        logits: npt.NDArray[np.float64] = made @ self._output.T
        return logits


class Recorder:
    """A greedy `Choose` that keeps every line of logits it saw, by request."""

    def __init__(self) -> None:
        self.lines: dict[int, list[Logits]] = {}
        self.ids: npt.NDArray[np.int64] | None = None

    def __call__(
        self,
        requests: Sequence[int],
        logits_RW: Logits,
        ids_W: npt.NDArray[np.integer] | None = None,
        argmax_R: Sequence[int] | None = None,
    ) -> list[int | None]:
        self.ids = ids_W
        for index, line in zip(requests, logits_RW, strict=True):
            self.lines.setdefault(index, []).append(line.copy())
        assert argmax_R is not None
        return greedy(requests, logits_RW, ids_W, argmax_R)

    def bits(self, request: int) -> bytes:
        return b"".join(line.tobytes() for line in self.lines[request])


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def runners(tmp_path_factory: pytest.TempPathFactory) -> dict[int, NativeRunner]:
    """On one thread and on two; weights of model and head rounded, as they are served."""
    root = tmp_path_factory.mktemp("heads")
    model = write_native_model(root / "model", "llama")
    head = write_random_head(model, root / "head.safetensors", draft_ids=DRAFT_IDS)
    return {threads: load_native(model, root, head=head, threads=threads) for threads in (1, 2)}


def computed(runner: NativeRunner, token_ids: Sequence[int], block_ids: tuple[int, ...]) -> None:
    runner.run(StepPlan((Row(0, 0, tuple(token_ids), block_ids, num_logits=0),)))


@pytest.mark.parametrize(
    ("name", "num_blocks", "draft_ids"),
    [
        ("llama", 1, None),
        ("llama", 2, DRAFT_IDS),
        ("llama tied", 1, DRAFT_IDS),
        ("llama3 rope", 1, None),
        ("qwen2", 1, None),
        ("qwen3", 1, DRAFT_IDS),
        ("mistral sliding", 2, None),
    ],
)
def test_guesses_are_those_of_the_plain_graph(
    name: str, num_blocks: int, draft_ids: tuple[int, ...] | None, tmp_path: Path, cache: Path
) -> None:
    """Drafts of all depths side by side, prompts in chunks of 7, scattered blocks, drafts accepted in part."""
    model = write_native_model(tmp_path / "model", name)
    head = write_random_head(model, tmp_path / "head.safetensors", num_blocks=num_blocks, draft_ids=draft_ids)
    reference = Reference(model, head)
    runner = load_native(model, cache, head=head, **EXACT)
    prompts = [random_ids(length, VOCAB_SIZE, seed=length) for length in LENGTHS]
    results = draft_together(runner, prompts, 12, depths=(1, 2, 4, 8), chunk=7)
    runner.close()
    num_checked = 0
    for prompt, result in zip(prompts, results, strict=True):
        text = [*prompt, *result.token_ids]
        for num_known, guesses in result.drafts:
            logits_KW = reference.draft_logits(text[:num_known], guesses[:-1])
            assert reference.ids[logits_KW.argmax(axis=1)].tolist() == list(guesses)
            num_checked += len(guesses)
    assert num_checked > 100


def test_logits_are_those_of_the_plain_graph(tmp_path: Path, cache: Path) -> None:
    model = write_native_model(tmp_path / "model", "qwen3")
    head = write_random_head(model, tmp_path / "head.safetensors", draft_ids=DRAFT_IDS)
    runner = load_native(model, cache, head=head, **EXACT)
    tokens, blocks, seen = random_ids(40, VOCAB_SIZE), (5, 1, 9), Recorder()
    computed(runner, tokens[:-1], blocks)
    (guesses,) = runner.draft([DraftRequest(0, 1, tuple(tokens[1:]), blocks, depth=6)], seen)
    runner.close()
    assert seen.ids is not None
    assert seen.ids.tolist() == list(DRAFT_IDS)
    assert set(guesses) <= set(DRAFT_IDS)
    expected = Reference(model, head).draft_logits(tokens, guesses[:-1])
    np.testing.assert_allclose(np.array(seen.lines[0]), expected, rtol=0, atol=1e-4)
    assert np.abs(expected).max() > 0.3, "logits that are all small prove nothing"


def test_a_whole_vocabulary_names_no_ids(tmp_path: Path, cache: Path) -> None:
    model = write_native_model(tmp_path / "model", "llama")
    runner = load_native(model, cache, head=write_random_head(model, tmp_path / "h.safetensors"))
    seen = Recorder()
    computed(runner, [5, 6], (0,))
    runner.draft([DraftRequest(0, 1, (6, 7), (0,), depth=1)], seen)
    runner.close()
    assert seen.ids is None
    assert seen.lines[0][0].shape == (VOCAB_SIZE,)


class TestInvariance:
    """Drafts follow from their own sequence alone, and the model from no draft."""

    def test_neighbours_blocks_and_pieces_change_no_bit(self, runners: dict[int, NativeRunner]) -> None:
        """Four requests in one call, built in pieces before, against each of them alone and whole on one thread."""
        texts = [random_ids(length, VOCAB_SIZE, seed=length) for length in LENGTHS]
        alone = []
        for text, depth in zip(texts, (3, 0, 8, 5), strict=True):
            seen, blocks = Recorder(), (3, 2, 1, 0)
            computed(runners[1], text[:-1], blocks)
            drafts = runners[1].draft([DraftRequest(0, 1, tuple(text[1:]), blocks, depth)], seen)
            alone.append((drafts[0], seen.bits(0) if depth else b""))
        requests, together = [], Recorder()
        for index, (text, depth) in enumerate(zip(texts, (3, 0, 8, 5), strict=True)):
            blocks = tuple(range(60 - 5 * index, 56 - 5 * index, -1))
            computed(runners[2], text[:-1], blocks)
            cut = len(text) // 2
            if index % 2:
                runners[2].draft([DraftRequest(0, 1, tuple(text[1:cut]), blocks, 0)], together)
            start = cut if index % 2 else 1
            requests.append(DraftRequest(index, start, tuple(text[start:]), blocks, depth))
        drafts = runners[2].draft(requests, together)
        found = [(drafts[index], together.bits(index) if index in together.lines else b"") for index in range(4)]
        assert found == alone
        assert len({ids for ids, _ in found}) == 4

    def test_what_blocks_held_before_changes_no_bit(self, runners: dict[int, NativeRunner]) -> None:
        """Slot 0 isn't built: what another sequence left there must not be seen."""
        runner, text, bits = runners[1], random_ids(5, VOCAB_SIZE), []
        for before in (None, 30, 60):
            if before:
                stranger = random_ids(before, VOCAB_SIZE, seed=before)
                blocks = (40, 41, 20, 42)[::-1]  # block 20 holds positions 16 to 31 of the stranger
                computed(runner, stranger[:-1], blocks)
                runner.draft([DraftRequest(0, 1, tuple(stranger[1:]), blocks, 0)], greedy)
            seen = Recorder()
            computed(runner, text[:-1], (20,))
            runner.draft([DraftRequest(0, 1, tuple(text[1:]), (20,), 4)], seen)
            bits.append(seen.bits(0))
        assert bits[0] == bits[1] == bits[2]

    def test_a_run_in_between_leaves_the_slots_alone(self, runners: dict[int, NativeRunner]) -> None:
        """Guesses are verified and refused; what is built after that is as if they had never been."""
        runner, text, blocks = runners[2], random_ids(30, VOCAB_SIZE, seed=9), (11, 12, 13)
        whole, piecewise = Recorder(), Recorder()
        computed(runner, text[:-1], blocks)
        runner.draft([DraftRequest(0, 1, tuple(text[1:]), blocks, 4)], whole)
        computed(runner, text[:20], blocks)
        (guesses,) = runner.draft([DraftRequest(0, 1, tuple(text[1:21]), blocks, 5)], greedy)
        runner.run(StepPlan((Row(0, 20, (text[20], *guesses), blocks, num_logits=6, num_drafts=5),)))
        runner.run(StepPlan((Row(0, 20, tuple(text[20:-1]), blocks, num_logits=1),)))
        runner.draft([DraftRequest(0, 21, tuple(text[21:]), blocks, 4)], piecewise)
        assert piecewise.bits(0) == whole.bits(0)

    def test_a_head_changes_no_bit_of_the_model(self, tmp_path: Path, cache: Path) -> None:
        model, tokens = write_native_model(tmp_path / "model", "llama"), random_ids(40, VOCAB_SIZE)
        head = write_random_head(model, tmp_path / "head.safetensors")
        plain, drafting = load_native(model, cache), load_native(model, cache, head=head)
        expected = all_logits(plain, tokens, chunk=7)
        first = all_logits(drafting, tokens[:20], chunk=7)
        drafting.draft([DraftRequest(0, 1, tuple(tokens[1:20]), (0, 1, 2), 8)], greedy)
        rest = drafting.run(StepPlan((Row(0, 20, tuple(tokens[20:]), (0, 1, 2), num_logits=20),)))
        assert np.concatenate([first, rest]).tobytes() == expected.tobytes()
        assert (drafting_runner(plain), drafting_runner(drafting)) == (None, drafting)
        plain.close()
        drafting.close()


class TestCalls:
    @pytest.fixture
    def runner(self, tmp_path: Path, cache: Path) -> NativeRunner:
        model = write_native_model(tmp_path / "model", "llama")
        return load_native(model, cache, head=write_random_head(model, tmp_path / "h.safetensors"))

    def test_depth_0_only_builds(self, runner: NativeRunner) -> None:
        computed(runner, [5, 6, 7], (0,))
        assert runner.draft([DraftRequest(0, 1, (6, 7, 8), (0,), 0)], never) == [()]
        assert runner.draft([], never) == []

    def test_none_ends_a_row_and_not_its_neighbours(self, runner: NativeRunner) -> None:
        """The second row ends after one guess; the others are asked on."""
        asked: list[list[int]] = []

        def choose(requests: Sequence[int], logits_RW: Logits, *_: object) -> list[int | None]:
            asked.append(list(requests))
            return [None if index == 1 and len(asked) == 2 else 40 + len(asked) for index in requests]

        for block in range(3):
            computed(runner, [5, 6, 7], (block,))
        requests = [DraftRequest(block, 1, (6, 7, 8), (block,), depth) for block, depth in enumerate((2, 4, 3))]
        assert runner.draft(requests, choose) == [(41, 42), (41,), (41, 42, 43)]
        assert asked == [[0, 1, 2], [0, 1, 2], [2]]

    @pytest.mark.parametrize(
        ("request_", "says"),
        [
            (DraftRequest(0, 0, (5, 6), (0,), 1), "position"),
            (DraftRequest(0, 1, (VOCAB_SIZE,), (0,), 1), "token"),
            (DraftRequest(0, 15, (5, 6), (0,), 1), "block"),
            (DraftRequest(0, 15, (5,), (0,), 2), "block"),
        ],
    )
    def test_what_is_not_there_is_refused(self, runner: NativeRunner, request_: DraftRequest, says: str) -> None:
        computed(runner, random_ids(16, VOCAB_SIZE), (0,))
        with pytest.raises(NativeCallError, match=says):
            runner.draft([request_], greedy)


def never(requests: Sequence[int], logits_RW: Logits, *_: object) -> list[int | None]:
    raise AssertionError("nothing was to be guessed")


class TestLoading:
    def test_the_runner_says_which_head_it_has(self, tmp_path: Path, cache: Path) -> None:
        model = write_native_model(tmp_path / "model", "llama")
        head = write_random_head(
            model, tmp_path / "h.safetensors", num_blocks=2, draft_ids=DRAFT_IDS, acceptance={"greedy": [0.5, 0.25]}
        )
        runner = load_native(model, cache, head=head)
        assert runner.info.head == head.info
        assert (head.info.name, head.info.num_blocks, head.info.greedy_acceptance) == ("h.safetensors", 2, (0.5, 0.25))
        assert (head.info.draft_vocab_size, runner.max_draft_depth) == (len(DRAFT_IDS), 8)
        runner.close()

    @pytest.mark.parametrize(
        ("name", "odd"), [("qwen2", "self_attn.k_proj.bias"), ("qwen3", "self_attn.k_norm.weight")]
    )
    def test_blocks_of_another_family_are_refused(self, name: str, odd: str, tmp_path: Path, cache: Path) -> None:
        model = write_native_model(tmp_path / "model", name)
        head = write_random_head(model, tmp_path / "h.safetensors")
        bare = {part: head.floats(part) for part in head.shapes if "bias" not in part and "_norm.w" not in part}
        with pytest.raises(ModelError, match=f"differ in blocks.0.{odd}"):
            load_native(model, cache, head=write_head(head.path, bare, head.metadata))

    def test_a_width_that_has_no_whole_groups_is_refused(self, tmp_path: Path, cache: Path) -> None:
        model = write_native_model(tmp_path / "model", "llama")
        head = write_random_head(model, tmp_path / "h.safetensors")
        odd = INTERMEDIATE - 1
        cut = {name: head.floats(name) for name in head.shapes}
        for part in ("gate", "up"):
            cut[f"blocks.0.mlp.{part}_proj.weight"] = cut[f"blocks.0.mlp.{part}_proj.weight"][:odd]
        cut["blocks.0.mlp.down_proj.weight"] = cut["blocks.0.mlp.down_proj.weight"][:, :odd]
        with pytest.raises(ModelError, match="no multiple of 32"):
            load_native(model, cache, head=write_head(head.path, cut, head.metadata))


def test_an_echoing_head_is_right_and_wrong_by_turns(tmp_path: Path, cache: Path) -> None:
    """What the tests of whole answers stand on."""
    model = write_whispering(tmp_path / "model")
    runner = load_native(model, cache, head=write_echoing_head(model, tmp_path / "h.safetensors"))
    prompts = [random_ids(length, VOCAB_SIZE, seed=length) for length in LENGTHS]
    results = draft_together(runner, prompts, 40, depths=(3, 3, 3, 3))
    runner.close()
    assert 0.2 < sum(result.acceptance for result in results) / len(results) < 0.9
