"""`mtplx pull`, `mtplx models` and `mtplx inspect` on tiny files."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from mtplx.commands import inspect, models, pull
from mtplx.commands.public import main
from mtplx.config import Parser
from tests.gguf_files import EOS_ID, SIZES, write_gguf


@pytest.fixture
def model_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A GGUF file beside an empty cache, away from the user's own."""
    monkeypatch.setenv("MTPLX_CACHE_DIR", str(tmp_path / "cache"))
    return write_gguf(tmp_path / "tiny.gguf")


def run(*arguments: str) -> int:
    parser = Parser(prog="mtplx")
    subparsers = parser.add_subparsers(dest="command")
    commands = {"pull": pull, "models": models, "inspect": inspect}
    for command in commands.values():
        command.add_parser(subparsers)
    namespace: argparse.Namespace = parser.parse_args(arguments)
    return commands[namespace.command].run(namespace)


def test_inspect_gives_the_facts_to_programs(model_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", str(model_path), "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["architecture"] == "LlamaForCausalLM"
    assert facts["gguf"] == str(model_path)
    assert (facts["num_layers"], facts["context_length"]) == (SIZES["num_hidden_layers"], 128)
    assert (facts["eos_ids"], facts["weight_type"]) == ([EOS_ID], "F32")
    assert (facts["num_mtp_modules"], facts["draft_head"]) == (None, None)
    assert facts["num_parameters"] * 4 < facts["num_bytes"]
    assert facts["runner"] in ("native", "torch")  # as this machine has it
    assert (facts["native_build"] is not None) == (facts["runner"] == "native")
    assert facts["runner_reason"]


def test_inspect_gives_the_facts_to_people(model_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", str(model_path)) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if len(line.split()) > 1)
    assert lines["architecture"].strip() == "LlamaForCausalLM"
    assert not {"sliding", "mtp", "draft"} & set(lines)


def test_inspect_names_the_formats_of_a_gguf_and_copies_no_weights(
    model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_gguf(model_path, tensor_type="Q4_K_M")
    assert run("inspect", str(model_path), "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["weight_type"] == "Q4_K+Q6_K"
    assert facts["num_bytes"] == model_path.stat().st_size
    assert not list(Path(facts["folder"]).glob("*.safetensors"))


def own_models(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    """What `mtplx models --json` prints, without what other programs have put into the hub's cache."""
    assert run("models", "--json") == 0
    return [model for model in json.loads(capsys.readouterr().out)["models"] if model["kind"] != "hub"]


def test_models_lists_what_is_cached(model_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert own_models(capsys) == []
    run("inspect", str(model_path), "--json")
    folder = Path(json.loads(capsys.readouterr().out)["folder"])
    (model,) = own_models(capsys)
    num_bytes = sum(path.stat().st_size for path in folder.iterdir())
    assert model == {
        "name": "tiny.gguf",
        "kind": "converted",
        "source": f"GGUF file {model_path}",
        "num_bytes": num_bytes,
        "folder": str(folder),
        "is_whole": True,
    }
    (folder / "config.json").write_text("{}")
    run("models")
    out = capsys.readouterr().out
    assert "converted, damaged" in out
    assert "not cached: smollm2-135m-instruct" in out


def test_pull_says_where_the_model_is(model_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("pull", str(model_path)) == 0
    assert str(model_path.parent / "cache" / "converted") in capsys.readouterr().out


@pytest.mark.parametrize("command", ["pull", "inspect"])
def test_wrong_model_is_one_sentence_and_a_code(
    command: str, model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model_path.write_bytes(model_path.read_bytes()[:5000])
    assert main([command, str(model_path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"mtplx: {model_path} is damaged or cut short")
    assert captured.err.count("\n") == 1
