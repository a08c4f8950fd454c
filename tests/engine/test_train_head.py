"""`mtplx train-head` from end to end on a tiny model: text, a kill, the rest, and a file that its model takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mtplx.commands.public import build_parser, main
from mtplx.errors import ConfigError
from mtplx.model.folder import read_spec
from mtplx.model.head_file import check_head, open_head, tokenizer_sha256
from mtplx.model.weights import ModelFolder
from mtplx.train.run import TextPlan, TrainedHead, train_head
from mtplx.train.trainer import Recipe
from tests.fakes import write_byte_tokenizer
from tests.native_models import write_native_model

TEXT = TextPlan(passages=20, max_answer_tokens=8, draft_vocab=40, shard_passages=20)
RECIPE = Recipe(depths=2, regression_rounds=1.0, first_depth_rounds=1.0)


class KilledError(Exception):
    """Stands for a kill."""


class Told:
    """A progress that notes what it is told, and may end the run at some unit of some stage."""

    def __init__(self, kill_at: tuple[str, int] | None = None) -> None:
        self.begun: dict[str, tuple[int, int]] = {}
        self.num_advanced = 0
        self._kill_at = kill_at
        self._stage = ""

    def begin(self, label: str, total: int, done: int) -> None:
        self.begun[label] = (total, done)
        self._stage, self.num_advanced = label, 0

    def advance(self, note: str = "") -> None:
        self.num_advanced += 1
        if self._kill_at == (self._stage, self.num_advanced):
            raise KilledError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    folder = tmp_path_factory.mktemp("model")
    write_byte_tokenizer(folder)
    return write_native_model(folder, "qwen3", vocab_size=260, max_position_embeddings=512)


@pytest.fixture
def train(model: ModelFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TrainedHead]:
    monkeypatch.setenv("MTPLX_CACHE_DIR", str(tmp_path / "cache"))

    def run(
        told: Told,
        name: str = "head.safetensors",
        work: str = "work",
        text: TextPlan = TEXT,
        recipe: Recipe = RECIPE,
        start_from: Path | None = None,
        text_from: Sequence[Path] = (),
    ) -> TrainedHead:
        return train_head(
            model,
            tmp_path / name,
            text=text,
            recipe=recipe,
            data=None,
            text_from=text_from,
            start_from=start_from,
            threads=1,
            work_dir=tmp_path / work,
            command="mtplx train-head tiny",
            progress=told,
        )

    return run


def test_a_killed_run_goes_on_and_gives_the_head_of_one_that_was_not(
    model: ModelFolder, train: Callable[..., TrainedHead], tmp_path: Path
) -> None:
    whole = train(Told(), "whole.safetensors", "other work")
    with pytest.raises(KilledError):
        train(Told(kill_at=("writing text", 30)))  # in the second file of text
    with pytest.raises(KilledError):
        train(again := Told(kill_at=("training", 3)))
    assert again.begun["writing text"] == (40, 20)
    assert not (tmp_path / "head.safetensors").exists()
    told = Told()
    trained = train(told)
    assert told.begun["writing text"] == (40, 40)
    assert told.begun["training"][0] == told.num_advanced + told.begun["training"][1]
    for name in trained.file.shapes:
        if name != "draft_vocab":
            assert (trained.file.floats(name) == whole.file.floats(name)).all(), name
    assert trained.acceptance == whole.acceptance


def test_the_file_fits_its_model_and_says_how_it_was_made(
    model: ModelFolder, train: Callable[..., TrainedHead]
) -> None:
    trained = train(Told())
    head = open_head(trained.file.path)
    check_head(head, read_spec(model.path), tokenizer_sha256(model.path))
    assert head.draft_vocab is not None
    assert len(head.draft_vocab) == TEXT.draft_vocab
    assert head.metadata.training["command"] == "mtplx train-head tiny"
    assert head.greedy_acceptance == pytest.approx(trained.acceptance.by_depth, abs=1e-4)
    assert len(head.greedy_acceptance) == 4


def test_a_head_goes_on_from_another_with_the_vocabulary_of_its_own_text(train: Callable[..., TrainedHead]) -> None:
    first = train(Told())
    nothing_new = Recipe(regression_rounds=0.0, first_depth_rounds=0.0, all_depths_rounds=0.0)
    other_text = TextPlan(passages=20, max_answer_tokens=6, draft_vocab=TEXT.draft_vocab, shard_passages=20)
    again = train(Told(), "again.safetensors", "other work", other_text, nothing_new, first.file.path)
    fresh = train(Told(), "fresh.safetensors", "fresh work", other_text, nothing_new)
    assert again.file.draft_vocab is not None
    assert fresh.file.draft_vocab is not None
    assert again.file.draft_vocab.tolist() == fresh.file.draft_vocab.tolist()
    assert (again.file.floats("eh_proj.weight") == first.file.floats("eh_proj.weight")).all()
    assert again.file.metadata.training["started_from"] == first.file.metadata.training
    fewer = train(
        Told(), "fewer.safetensors", "less work", replace(other_text, draft_vocab=10), nothing_new, again.file.path
    )
    assert fewer.file.draft_vocab is not None
    assert len(fewer.file.draft_vocab) == 10


def test_the_text_of_earlier_runs_is_learned_from_too(train: Callable[..., TrainedHead], tmp_path: Path) -> None:
    first = train(Told())
    alone = train(Told(), "alone.safetensors", "alone", recipe=replace(RECIPE, seed=1))
    both = train(Told(), "both.safetensors", "both", recipe=replace(RECIPE, seed=1), text_from=[tmp_path / "work"])
    tokens = [trained.file.metadata.training["tokens"] for trained in (first, alone, both)]
    assert tokens[2] == tokens[0] + tokens[1]
    with pytest.raises(ConfigError, match="no text") as caught:
        train(Told(), "none.safetensors", "none", text_from=[tmp_path])
    assert caught.value.parameter == "--text-from"


def test_a_work_folder_of_other_settings_is_refused(train: Callable[..., TrainedHead]) -> None:
    with pytest.raises(KilledError):
        train(Told(kill_at=("writing text", 1)))
    with pytest.raises(ConfigError, match="other settings") as caught:
        train(Told(), text=TextPlan(passages=20, max_answer_tokens=9, draft_vocab=40))
    assert caught.value.parameter == "--work-dir"


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--passages", "0"),
        ("--blocks", "9"),
        ("--depths", "0"),
        ("--rounds", "-1"),
        ("--rounds", "nan"),
        ("--threads", "0"),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(
    flag: str, value: str, model: ModelFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train-head", str(model.path), flag, value]) == 2
    assert flag in capsys.readouterr().err


def test_the_flags_begin_where_the_recipe_does() -> None:
    flags, text, recipe = build_parser({"train-head"}).parse(["train-head", "any"]), TextPlan(), Recipe()
    assert (flags.passages, flags.max_answer_tokens, flags.draft_vocab) == (
        text.passages,
        text.max_answer_tokens,
        text.draft_vocab,
    )
    assert (flags.blocks, flags.depths, flags.seed) == (recipe.num_blocks, recipe.depths, recipe.seed)
    assert flags.regression_rounds == recipe.regression_rounds
    assert flags.first_depth_rounds == recipe.first_depth_rounds
    assert flags.rounds == recipe.all_depths_rounds
    assert flags.start_from is None
