"""A conversation of many messages is rendered apart, and the same prompt comes of it."""

from __future__ import annotations

from pathlib import Path

from mtplx.text.chat import ChatTemplate
from mtplx.text.messages import MAX_PARTS_HERE, is_large
from tests.server.asgi import CHAT, ask
from tests.server.fakes import MODEL, FakeStreams, fake_server


def test_a_large_conversation_has_the_prompt_of_its_template(tmp_path: Path) -> None:
    server = fake_server(tmp_path, FakeStreams(max_model_len=2**20))
    messages = [{"role": "user", "content": f"message {k}"} for k in range(MAX_PARTS_HERE + 1)]
    assert is_large(messages)
    assert ask(server, "POST", CHAT, json={"model": MODEL, "messages": messages}).status_code == 200
    text = server.tokenizer.decode(server.last.prompts[0], skip_special_tokens=False)
    assert text == ChatTemplate.load(tmp_path).render(messages)
