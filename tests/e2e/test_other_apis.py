"""/v1/messages and /v1/responses through the official clients and through programs that are built on them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from anthropic import Anthropic
from openai import OpenAI
from openai.types.responses import ResponseCompletedEvent
from pydantic import BaseModel

from mtplx.batching.state import StepPlan
from tests.fakes import EOS, FakeRunner
from tests.live import MODEL, LiveServer, live_server

HI: list[Any] = [{"role": "user", "content": "hi"}]
SAYS = "hello there"


def speaking(history: tuple[int, ...]) -> int:
    """The next byte of SAYS behind any prompt, whose last token opens the assistant's turn."""
    opened = max(index for index, token_id in enumerate(history) if token_id >= 256)
    num_said = len(history) - opened - 1
    return SAYS.encode()[num_said] if num_said < len(SAYS) else EOS


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    runner = FakeRunner(script=speaking)
    with live_server(tmp_path_factory.mktemp("model"), runner, api_key=("key",)) as server:
        yield server


def of_anthropic(server: LiveServer, key: str = "key") -> Anthropic:
    return Anthropic(base_url=server.url, api_key=key, max_retries=0)


def of_openai(server: LiveServer, key: str = "key") -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def test_anthropics_client_gets_the_same_message_streamed_and_not(server: LiveServer) -> None:
    with of_anthropic(server) as client:
        whole = client.messages.create(model=MODEL, max_tokens=20, messages=HI)
        with client.messages.stream(model=MODEL, max_tokens=20, messages=HI) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        count = client.messages.count_tokens(model=MODEL, messages=HI)
    assert [block.to_dict() for block in whole.content] == [{"type": "text", "text": SAYS}]
    assert text == SAYS
    assert [block.to_dict() for block in final.content] == [{"type": "text", "text": SAYS}]
    assert whole.stop_reason == final.stop_reason == "end_turn"
    for usage in (whole.usage, final.usage):
        assert usage.output_tokens == len(SAYS) + 1
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == count.input_tokens


def test_anthropics_client_is_told_which_stop_sequence_it_was(server: LiveServer) -> None:
    with of_anthropic(server) as client:
        message = client.messages.create(model=MODEL, max_tokens=20, messages=HI, stop_sequences=["xyz", " th"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", " th")
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "hello"}]


def test_openais_client_gets_the_same_response_streamed_and_not(server: LiveServer) -> None:
    with of_openai(server) as client:
        whole = client.responses.create(model=MODEL, input="hi")
        with client.responses.stream(model=MODEL, input="hi") as stream:
            events = list(stream)
            final = stream.get_final_response()
    assert whole.output_text == final.output_text == SAYS
    assert whole.status == final.status == "completed"
    assert isinstance(events[-1], ResponseCompletedEvent)
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_a_conversation_goes_on_with_what_was_answered(server: LiveServer) -> None:
    """What a client got can be sent back as it is."""
    with of_anthropic(server) as client:
        message = client.messages.create(model=MODEL, max_tokens=20, messages=HI)
        turns = [*HI, {"role": "assistant", "content": message.content}, *HI]
        assert client.messages.create(model=MODEL, max_tokens=20, messages=turns).content == message.content
    with of_openai(server) as client:
        response = client.responses.create(model=MODEL, input="hi")
        items: list[Any] = [*HI, *response.output, *HI]
        assert client.responses.create(model=MODEL, input=items).output_text == SAYS


def test_errors_are_the_clients_own_exceptions(server: LiveServer) -> None:
    with of_anthropic(server) as client:
        with pytest.raises(anthropic.NotFoundError, match="no-model"):
            client.messages.create(model="no-model", max_tokens=5, messages=HI)
        with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
            client.messages.create(model=MODEL, max_tokens=10_000, messages=HI)
    with of_anthropic(server, key="wrong") as client, pytest.raises(anthropic.AuthenticationError):
        client.messages.create(model=MODEL, max_tokens=5, messages=HI)
    with of_openai(server) as openai_client:
        with pytest.raises(openai.BadRequestError) as caught:
            openai_client.responses.create(model=MODEL, input="hi", previous_response_id="resp_1")
        assert caught.value.param == "previous_response_id"
        with pytest.raises(openai.BadRequestError, match="embedding model"):
            openai_client.embeddings.create(model=MODEL, input="hi")


def test_a_full_queue_is_an_error_that_clients_know(tmp_path: Path) -> None:
    gate = threading.Event()

    def hold(_: StepPlan) -> None:
        gate.wait(60)

    limits = {"decode_batch_max": 1, "max_queue": 0}
    with (
        live_server(tmp_path, FakeRunner(script=speaking, fault=hold), **limits) as server,
        of_anthropic(server) as client,
        of_openai(server) as openai_client,
    ):
        stream = client.messages.create(model=MODEL, max_tokens=20, messages=HI, stream=True)
        with pytest.raises(anthropic.OverloadedError) as caught:
            client.messages.create(model=MODEL, max_tokens=5, messages=HI)
        with pytest.raises(openai.InternalServerError, match="try again later"):
            openai_client.responses.create(model=MODEL, input="hi")
        gate.set()
        assert [event.type for event in stream][-1] == "message_stop"
    assert caught.value.response.headers["retry-after"]


def test_a_stream_that_fails_raises_or_says_so(tmp_path: Path) -> None:
    def fail(plan: StepPlan) -> None:
        if any(row.end > 20 for row in plan.rows):
            raise RuntimeError("no more")

    with live_server(tmp_path, FakeRunner(script=speaking, fault=fail)) as server:
        with of_anthropic(server) as client:
            stream = client.messages.create(model=MODEL, max_tokens=20, messages=HI, stream=True)
            with pytest.raises(anthropic.APIStatusError, match="api_error"):
                list(stream)
        with of_openai(server) as openai_client:
            kinds = [event.type for event in openai_client.responses.create(model=MODEL, input="hi", stream=True)]
    assert kinds[-2:] == ["error", "response.failed"]


@pytest.mark.real_model
def test_langchain_speaks_both_apis(live_server_url: str) -> None:
    from langchain_anthropic import ChatAnthropic
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    name, key = "smollm2-135m-instruct", SecretStr("none")
    common: dict[str, Any] = {"temperature": 0, "max_tokens": 8}
    chats = [
        ChatAnthropic(model_name=name, base_url=live_server_url, api_key=key, **common),
        ChatOpenAI(model=name, base_url=f"{live_server_url}/v1", api_key=key, use_responses_api=True, **common),
    ]
    answers = [chat.invoke([("system", "Be brief."), ("human", "Say hello.")]) for chat in chats]
    for chat, answer in zip(chats, answers, strict=True):
        pieces = list(chat.stream([("system", "Be brief."), ("human", "Say hello.")]))
        assert "".join(piece.text for piece in pieces) == answer.text != ""
        assert answer.usage_metadata is not None
        assert answer.usage_metadata["output_tokens"] == 8
        assert chat.invoke([("human", "Say hello."), answer, ("human", "And again.")]).text
    assert answers[0].text == answers[1].text


@pytest.mark.real_model
def test_structured_output_comes_parsed(live_server_url: str) -> None:
    class Person(BaseModel):
        name: str
        is_tall: bool

    name = "smollm2-135m-instruct"
    with OpenAI(base_url=f"{live_server_url}/v1", api_key="none") as client:
        parsed = client.responses.parse(model=name, input="Anna is tall.", text_format=Person, temperature=0)
        assert isinstance(parsed.output_parsed, Person)
    with Anthropic(base_url=live_server_url, api_key="none") as client:
        message = client.messages.parse(
            model=name, max_tokens=200, messages=[{"role": "user", "content": "Anna is tall."}], output_format=Person
        )
        assert isinstance(message.parsed_output, Person)


@pytest.mark.real_model
@pytest.mark.parametrize("flags", [("--responses",), ("--responses", "--no-stream"), ()])
def test_the_llm_program_answers(live_server_url: str, tmp_path: Path, flags: tuple[str, ...]) -> None:
    command = [
        *(sys.executable, "-m", "llm", "openai", "endpoint", f"{live_server_url}/v1", "Say hello."),
        *("-m", "smollm2-135m-instruct", "-o", "temperature", "0", *flags),
    ]
    env = {**os.environ, "LLM_USER_PATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
