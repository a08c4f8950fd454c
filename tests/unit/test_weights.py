"""Whatever `--model` holds leads to a whole folder, or to one sentence that says why not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mtplx.errors import ModelError
from mtplx.model.checkpoint import check_checkpoint, count_parameters, weight_types
from mtplx.model.convert import convert_gguf
from mtplx.model.download import Transports
from mtplx.model.inventory import cached_models
from mtplx.model.weights import resolve_model, with_safetensors
from tests.fake_hub import COMMIT, fake_hub
from tests.gguf_files import tiny_model, write_gguf


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MTPLX_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def ready_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model in Hugging Face layout, without the mark of a conversion."""
    root = tmp_path_factory.mktemp("ready")
    converted, _ = convert_gguf(write_gguf(root / "a.gguf"), root, "a test", lambda line: None)
    (converted / "mtplx.json").unlink()
    return converted


@pytest.fixture
def folder(ready_folder: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(ready_folder, tmp_path / "my-model"))


def unreachable(repo_id: str, *, local_only: bool) -> Path:
    raise ModelError(f"{repo_id} isn't there")


def test_local_folder_is_taken_as_it_is(folder: Path) -> None:
    model = resolve_model(str(folder))
    assert (model.path, model.name, model.gguf_path) == (folder, "my-model", None)


def test_gguf_file_is_converted_and_remembered(tmp_path: Path, cache: Path) -> None:
    path = write_gguf(tmp_path / "my model.GGUF")
    model = resolve_model(str(path))
    assert (model.name, model.gguf_path) == ("my model", path)
    assert model.path.parent == cache / "converted"
    check_checkpoint(model.path)


def test_weights_of_a_gguf_file_are_made_when_they_are_wanted(tmp_path: Path) -> None:
    """And asking for less later doesn't take them away."""
    path = write_gguf(tmp_path / "my-model.gguf")
    light = resolve_model(str(path), with_weights=False)
    assert {file.name for file in light.path.iterdir()} >= {"config.json", "tokenizer.json", "generation_config.json"}
    assert not list(light.path.glob("*.safetensors"))
    whole = with_safetensors(light)
    assert whole == light
    check_checkpoint(whole.path)
    assert resolve_model(str(path), with_weights=False) == light
    check_checkpoint(light.path)


@pytest.mark.parametrize("name", ["./none", "none/of/these", "~/none-of-these", f"{os.sep}none"])
def test_missing_path_is_called_missing(name: str) -> None:
    with pytest.raises(ModelError, match=r"there is no folder or file .*none"):
        resolve_model(name)


def test_unknown_name_tells_the_known_ones_and_the_other_ways() -> None:
    with pytest.raises(ModelError, match=r"'smollm9'.*smollm2-135m-instruct.*organisation/model.*folder.*\.gguf"):
        resolve_model("smollm9")


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_text("")
    with pytest.raises(ModelError, match=r"model\.bin is neither"):
        resolve_model(str(tmp_path / "model.bin"))
    with pytest.raises(ModelError, match=r"there is no file .*none\.gguf"):
        resolve_model(str(tmp_path / "none.gguf"))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_incomplete_folder_is_refused_by_the_missing_file(name: str, folder: Path) -> None:
    (folder / name).unlink()
    with pytest.raises(ModelError, match="safetensors" if name.endswith("safetensors") else name):
        resolve_model(str(folder))


def test_pickled_weights_are_refused_with_the_reason(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="pickled weights, which may run code"):
        resolve_model(str(folder))


@pytest.mark.parametrize("num_bytes", [0, 4, 8, 100, 5000, -1])
def test_truncated_safetensors_is_refused(num_bytes: int, folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:num_bytes])
    with pytest.raises(ModelError, match=r"model\.safetensors is (cut short|damaged)"):
        resolve_model(str(folder))


def test_shards_are_followed_and_must_be_there(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    save_file({"a": torch.zeros(3, 4)}, folder / "one.safetensors")
    save_file({"b": torch.zeros(5, dtype=torch.bfloat16)}, folder / "two.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert (count_parameters(folder), weight_types(folder)) == (17, ["F32", "BF16"])
    (folder / "two.safetensors").unlink()
    with pytest.raises(ModelError, match=r"lacks two\.safetensors"):
        resolve_model(str(folder))


def test_parameters_are_counted_as_the_model_has_them(folder: Path) -> None:
    assert count_parameters(folder) == sum(parameter.numel() for parameter in tiny_model("llama").parameters())


def test_hub_id_needs_no_network_once_it_is_cached(folder: Path) -> None:
    asked: list[bool] = []

    def snapshot(repo_id: str, *, local_only: bool) -> Path:
        asked.append(local_only)
        return folder

    transports = Transports(snapshot=snapshot)
    model = resolve_model("someone/tiny", transports=transports)
    assert (model.path, model.name, model.source) == (folder, "someone/tiny", "model hub someone/tiny")
    assert asked == [True]
    resolve_model("someone/tiny", refresh=True, transports=transports)
    assert asked == [True, False]
    (folder / "model.safetensors").unlink()  # a fetch that was cut short
    with pytest.raises(ModelError, match="no safetensors"):
        resolve_model("someone/tiny", transports=transports)
    assert asked == [True, False, True, False]


def test_hub_failure_is_passed_on() -> None:
    with pytest.raises(ModelError, match="someone/tiny isn't there"):
        resolve_model("someone/tiny", offline=True, transports=Transports(snapshot=unreachable))


def test_hub_library_fetches_data_only_and_then_works_offline(ready_folder: Path, tmp_path: Path) -> None:
    """The real library and command against a hub on loopback: no pickles, no code, no second copy of the weights."""
    files = {path.name: path.read_bytes() for path in ready_folder.iterdir()}
    wanted = set(files)
    files |= {"pytorch_model.bin": b"pickle", "modeling.py": b"code", "original/model.safetensors": b"again"}
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))},
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1",
    }

    def inspect(*arguments: str) -> subprocess.CompletedProcess[str]:
        code = "import sys; from mtplx.commands.public import main; sys.exit(main())"
        command = [sys.executable, "-c", code, "inspect", *arguments, "--json"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    with fake_hub("someone/tiny", files) as hub:
        environment["HF_ENDPOINT"] = hub.url
        online = inspect("someone/tiny")
        absent = inspect("someone/absent")
    facts = json.loads(online.stdout)
    assert set(hub.asked) == wanted
    assert Path(facts["folder"]).name == COMMIT
    assert {path.name for path in Path(facts["folder"]).iterdir()} == wanted
    (listed,) = cached_models(tmp_path / "hf" / "hub")
    assert (listed.name, listed.kind, str(listed.folder)) == ("someone/tiny", "hub", facts["folder"])
    assert (absent.returncode, absent.stdout) == (1, "")
    assert "the model hub has no someone/absent" in absent.stderr.splitlines()[-1]
    assert json.loads(inspect("someone/tiny").stdout) == facts  # the hub is gone by now
    refused = inspect("someone/other")
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1] == (
        "mtplx: someone/other isn't in the cache, and the model hub can't be reached"
    )
