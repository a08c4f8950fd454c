"""A real engine whose model says what it is told to, asked for chat completions; tools to give it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.fakes import EOS, FakeDraftingRunner, FakeRunner, History
from tests.live import LiveServer, live_server
from tests.server.asgi import CHAT

ASSISTANT = 258  # the byte tokenizer's special token
ASK = [{"role": "user", "content": "hi"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "tells the weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 12},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
                "unit": {"enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "get_time"}}
ARGUMENTS = '{"city": "Köln", "unit": "celsius"}'
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
TIME = '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>'


def answering(text: str) -> Callable[[History], int]:
    """A script that says `text` after the template has opened the assistant's turn."""
    data = text.encode()

    def script(history: History) -> int:
        index = len(history) - 1 - max(at for at, token in enumerate(history) if token == ASSISTANT)
        return data[index] if index < len(data) else EOS

    return script


Serve = Callable[..., LiveServer]


@contextmanager
def serving(folder: Path) -> Iterator[Serve]:
    """Gives a function that serves a text, or the fake's own noise, until the block ends.

    In mtp_batch drafts are four deep and right half of the time.
    """
    with ExitStack() as stack:

        def start(text: str | None = None, mode: str = "mtp_batch", **settings: Any) -> LiveServer:
            script = (lambda _: None) if text is None else answering(text)
            room: dict[str, Any] = {"num_blocks": 2048, "block_size": 8, "max_position": 4096, "script": script}
            runner = FakeRunner(**room) if mode == "ar_batch" else FakeDraftingRunner(0.5, **room)
            depth = {} if mode == "ar_batch" else {"draft_depth": 4}
            return stack.enter_context(live_server(folder, runner, mode, prefill_chunk_tokens=256, **depth, **settings))

        yield start


def ask(server: LiveServer, **fields: Any) -> dict[str, Any]:
    return server.post(CHAT, **{"messages": ASK, "temperature": 0, **fields})


def choice_of(server: LiveServer, **fields: Any) -> dict[str, Any]:
    (choice,) = ask(server, **fields)["choices"]
    found: dict[str, Any] = choice
    return found


def stream(server: LiveServer, **fields: Any) -> list[dict[str, Any]]:
    """The choices of all chunks, in order; those of a chunk without any are left out."""
    body = {"model": "fake-model", "messages": ASK, "temperature": 0, "stream": True, **fields}
    response = server.client.post(CHAT, json=body)
    assert response.status_code == 200, response.text
    events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    return [choice for event in events[:-1] for choice in json.loads(event)["choices"]]


def joined(choices: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """The message that a client makes of a stream's deltas."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "calls": []}
    for choice in choices:
        if choice["index"] != index:
            continue
        message["content"] += choice["delta"].get("content", "")
        message["reasoning_content"] += choice["delta"].get("reasoning_content", "")
        for call in choice["delta"].get("tool_calls", []):
            if "id" in call:
                assert call["index"] == len(message["calls"])
                message["calls"].append([call["function"]["name"], ""])
            message["calls"][call["index"]][1] += call["function"]["arguments"]
    return message


def refusal(server: LiveServer, **fields: Any) -> dict[str, Any]:
    response = server.client.post(CHAT, json={"model": "fake-model", "messages": ASK, **fields})
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error
