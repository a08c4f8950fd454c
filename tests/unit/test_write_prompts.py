"""The prompts that heads are trained with: all different, and none of those that heads are measured with."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_training_prompts_are_different_and_none_is_held_out() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "write_prompts.py"))
    conversations = list(script["prompts"](2560))
    assert len({json.dumps(messages) for messages in conversations}) == 2560
    texts = {message["content"] for messages in conversations for message in messages}
    assert not any(re.search(r"\{[a-z]\}", text) for text in texts), "a place was left empty"
    lines = (ROOT / "benchmarks" / "data" / "prompts.jsonl").read_text().splitlines()
    held_out = {message["content"] for line in lines for message in json.loads(line)["messages"]}
    assert len(held_out) >= 100
    assert not texts & held_out
    assert conversations[:5] == list(script["prompts"](5))
