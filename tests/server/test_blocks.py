"""Answers of several blocks: thinking, text and calls in the shapes of /v1/messages and /v1/responses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import Message
from openai.types.responses import Response

from mtplx.batching.state import FinishReason
from mtplx.server.choice_text import Delta
from mtplx.text.tools.parts import CallArguments, CallBegin, CallEnd, Part, Reasoning, Text
from tests.server import test_messages, test_responses
from tests.server.fakes import FakeServer, FakeStreams, Item, entry_for, fake_server
from tests.server.test_messages import events
from tests.server.test_responses import numbered, same_answer

# A step may bring several pieces, of several kinds.
STEPS: list[list[Part]] = [
    [Reasoning("hm")],
    [Reasoning("m"), Text("I ")],
    [Text("look.")],
    [CallBegin("f")],
    [CallArguments('{"x":')],
    [CallArguments(" 1}"), CallEnd(), CallBegin("g"), CallArguments("{}"), CallEnd()],
]
CUT: list[list[Part]] = [[CallBegin("f")], [CallArguments('{"x":')]]


def served(folder: Path, steps: list[list[Part]], reason: FinishReason = FinishReason.TOOL_CALLS) -> FakeServer:
    def deltas(*_: Any) -> list[Item]:
        return [
            Delta(0, "?", (65,), (), reason if number == len(steps) - 1 else None, parts=tuple(parts))
            for number, parts in enumerate(steps)
        ]

    return fake_server(folder, FakeStreams(script=deltas))


def test_a_message_has_a_block_for_each(tmp_path: Path) -> None:
    server = served(tmp_path, STEPS)
    answer = test_messages.post(server).json()
    *_, first, second = answer["content"]
    assert first.pop("id") != second.pop("id")
    assert answer["content"] == [
        {"type": "thinking", "thinking": "hmm", "signature": ""},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "name": "f", "input": {"x": 1}},
        {"type": "tool_use", "name": "g", "input": {}},
    ]
    assert answer["stop_reason"] == "tool_use"


def test_a_streamed_message_has_the_same_blocks_one_after_the_other(tmp_path: Path) -> None:
    server = served(tmp_path, STEPS)
    stream = events(test_messages.post(server, stream=True))
    order = [(event["type"].removeprefix("content_block_"), event["index"]) for event in stream if "index" in event]
    assert order == [
        *[("start", 0), ("delta", 0), ("delta", 0), ("stop", 0)],
        *[("start", 1), ("delta", 1), ("delta", 1), ("stop", 1)],
        *[("start", 2), ("delta", 2), ("delta", 2), ("stop", 2)],
        *[("start", 3), ("delta", 3), ("stop", 3)],
    ]
    starts = [event["content_block"] for event in stream if event["type"] == "content_block_start"]
    assert starts[2].pop("id").startswith("call_")
    assert starts[2] == {"type": "tool_use", "name": "f", "input": {}}
    pieces = [event["delta"] for event in stream if event["type"] == "content_block_delta"]
    assert pieces[1] == {"type": "thinking_delta", "thinking": "m"}
    assert [piece.get("partial_json") for piece in pieces[4:]] == ['{"x":', " 1}", "{}"]
    assert stream[-2]["delta"]["stop_reason"] == "tool_use"


def test_a_response_has_an_item_for_each(tmp_path: Path) -> None:
    answer = test_responses.post(served(tmp_path, STEPS)).json()
    first, second = (item.pop("call_id") for item in answer["output"][2:])
    assert first != second
    done = {"status": "completed"}
    thought, said = {"type": "reasoning_text", "text": "hmm"}, {"type": "output_text", "text": "I look."}
    assert same_answer(answer)["output"] == [
        {"id": "rs_ID0", "type": "reasoning", **done, "summary": [], "content": [thought]},
        {
            "id": "msg_ID1",
            "type": "message",
            **done,
            "role": "assistant",
            "content": [{**said, "annotations": [], "logprobs": []}],
        },
        {"id": "fc_ID2", "type": "function_call", **done, "name": "f", "arguments": '{"x": 1}'},
        {"id": "fc_ID3", "type": "function_call", **done, "name": "g", "arguments": "{}"},
    ]
    assert answer["status"] == "completed"


def test_a_streamed_response_has_the_same_items_one_after_the_other(tmp_path: Path) -> None:
    stream = numbered(test_responses.post(served(tmp_path, STEPS), stream=True))
    order = [(event["type"].removeprefix("response."), event["output_index"]) for event in stream if "item" in event]
    assert order == [(f"output_item.{name}", index) for index in range(4) for name in ("added", "done")]
    done = [event["item"] for event in stream if event["type"] == "response.output_item.done"]
    assert done == stream[-1]["response"]["output"]
    of_call = [event for event in stream if event["type"].startswith("response.function_call_arguments")]
    place = {"item_id": done[2]["id"], "output_index": 2}
    kind = "response.function_call_arguments"
    assert of_call[:3] == [
        {"type": f"{kind}.delta", **place, "delta": '{"x":'},
        {"type": f"{kind}.delta", **place, "delta": " 1}"},
        {"type": f"{kind}.done", **place, "name": "f", "arguments": '{"x": 1}'},
    ]
    thoughts = [event for event in stream if event["type"].startswith("response.reasoning_text")]
    assert [event.get("delta", event.get("text")) for event in thoughts] == ["hm", "m", "hmm"]


def test_official_clients_find_what_they_look_for(tmp_path: Path) -> None:
    server = served(tmp_path, STEPS)
    message = Message.model_validate(test_messages.post(server).json())
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    response = Response.model_validate(test_responses.post(server).json())
    assert response.output_text == "I look."
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]


def test_a_call_that_is_cut_off_says_so(tmp_path: Path) -> None:
    server = served(tmp_path, CUT, FinishReason.LENGTH)
    message = test_messages.post(server).json()
    assert (message["stop_reason"], message["content"][0]["input"]) == ("max_tokens", {})
    stream = events(test_messages.post(server, stream=True))
    assert (stream[-2]["delta"]["stop_reason"], stream[-3]["type"]) == ("max_tokens", "content_block_stop")
    response = test_responses.post(server).json()
    (item,) = response["output"]
    assert (response["status"], item["status"], item["arguments"]) == ("incomplete", "incomplete", '{"x":')


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_those_of_the_text_alone(tmp_path: Path, stream: bool) -> None:
    """A step may bring the end of the thinking and the beginning of the text."""
    entries = tuple(entry_for(ord(letter), 0) for letter in "abc")
    script: list[Item] = [
        Delta(0, "?", (97,), entries[:1], None, parts=(Reasoning("hm"),), num_reasoning_tokens=1),
        Delta(0, "?", (97, 98), entries[:2], None, parts=(Reasoning("m"), Text("b")), num_reasoning_tokens=1),
        Delta(0, "", (99,), entries[2:], FinishReason.STOP, parts=()),
    ]
    server = fake_server(tmp_path, FakeStreams(script=lambda *_: list(script)))
    answer = test_responses.post(server, include=["message.output_text.logprobs"], stream=stream)
    if stream:
        pieces = [event for event in numbered(answer) if event["type"] == "response.output_text.delta"]
        assert [[entry["token"] for entry in piece["logprobs"]] for piece in pieces] == [["b"], ["c"]]
        output = json.loads(answer.text.removesuffix("\n\n").rpartition("data: ")[2])["response"]["output"]
    else:
        output = answer.json()["output"]
    assert [entry["token"] for entry in output[1]["content"][0]["logprobs"]] == ["b", "c"]


def test_logprobs_of_what_may_be_a_call_are_refused(tmp_path: Path) -> None:
    tools = [{"type": "function", "name": "f", "parameters": {}}]
    for fields, param in (
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
    ):
        response = test_responses.post(fake_server(tmp_path), tools=tools, **fields)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)
