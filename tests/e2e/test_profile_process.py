"""`mtplx profile` starts a hyper server of its own on the default model, reads its stages, and ends it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mtplx.commands.public import main
from mtplx.model.head_file import tokenizer_sha256
from mtplx.model.weights import resolve_model
from tests.engine.test_identity_drafts_native import write_trunk_head

pytestmark = pytest.mark.real_model


def test_a_server_is_started_profiled_and_stopped(
    tmp_path: Path, default_model_folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = resolve_model("smollm2-135m-instruct")
    head, prompts = tmp_path / "head.safetensors", tmp_path / "prompts"
    write_trunk_head(head, model, echo=0.3, tokenizer=tokenizer_sha256(default_model_folder))
    prompts.write_text("What is rain?\nName three rivers.\n", encoding="utf-8")
    monkeypatch.setenv("MTPLX_DRAFT_HEAD", str(head))
    flags = ["--draft-depth", "2", "--prompts", str(prompts), "--max-tokens", "8", "--json"]
    assert main(["profile", *flags]) == 0
    page = json.loads(capfd.readouterr().out)
    assert page["model"] == "smollm2-135m-instruct"
    assert page["num_steps"] > 2
    assert page["num_draft_tokens"] > 0
    assert {row["stage"] for row in page["stages"]} >= {"plan", "draft", "forward", "sample", "commit", "hand_over"}
    sizes = [row["num_tokens"] for row in page["forward_by_tokens"]]
    assert 3 in sizes, "one token and two drafts"
