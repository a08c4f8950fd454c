"""Tools with the official client: a round trip on the default model, its calls held to a grammar, streamed and not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

MODEL = "smollm2-135m-instruct"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"enum": [1, 2, 3]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "get_weather", "description": "a forecast", "parameters": SCHEMA}}
]
ASK: Any = [{"role": "user", "content": "What will the weather be like in Paris tomorrow?"}]


@pytest.fixture
def client(live_server_url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{live_server_url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.real_model
def test_a_call_its_result_and_the_answer(client: OpenAI) -> None:
    first = client.chat.completions.create(
        model=MODEL, messages=ASK, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, seed=1
    )
    choice = first.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    arguments = json.loads(call.function.arguments)
    assert sorted(arguments) == ["city", "days"]
    assert arguments["days"] in (1, 2, 3)
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    second = client.chat.completions.create(
        model=MODEL, messages=[*ASK, choice.message, result], tools=TOOLS, tool_choice="none", max_tokens=8, seed=1
    )
    assert second.choices[0].message.content


@pytest.mark.real_model
def test_a_streamed_call_is_that_of_the_whole_answer(client: OpenAI) -> None:
    wishes: Any = {"model": MODEL, "messages": ASK, "tools": TOOLS, "seed": 7, "temperature": 1}
    named: Any = {"type": "function", "function": {"name": "get_weather"}}
    whole = client.chat.completions.create(**wishes, tool_choice=named)
    with client.chat.completions.stream(**wishes, tool_choice=named) as stream:
        streamed = stream.get_final_completion()
    (one,), (other,) = whole.choices[0].message.tool_calls or (), streamed.choices[0].message.tool_calls or ()
    assert one.function.arguments == other.function.arguments
    assert other.id
    assert whole.choices[0].finish_reason == streamed.choices[0].finish_reason == "tool_calls"


@pytest.mark.real_model
def test_tools_may_stay_unused(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=ASK, tools=TOOLS, max_tokens=6, seed=3)
    message = answer.choices[0].message
    assert message.content or message.tool_calls
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")


@pytest.mark.real_model
def test_a_bad_schema_is_the_clients_fault(client: OpenAI) -> None:
    bad: Any = [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]
    with pytest.raises(BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=ASK, tools=bad)
    assert caught.value.param == "tools.0.function.parameters"
