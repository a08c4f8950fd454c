"""How a request stands among others: priority, deadline, salt and cohort on their way to the engine and back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from mtplx.batching.state import FinishReason
from mtplx.errors import DeadlineError
from mtplx.sampling_params import SamplingParams
from mtplx.server.admission import Limits
from mtplx.server.choice_text import Delta
from mtplx.server.engine import Cancel, SequenceOutput, Submit
from mtplx.server.stream import RequestStream, Streams, Terms
from tests.fakes import EOS, load_byte_tokenizer
from tests.server.asgi import chat, complete, error_of
from tests.server.fakes import FakeServer, FakeStreams, fake_server


@pytest.fixture
def server(tmp_path: Path) -> FakeServer:
    return fake_server(tmp_path)


@pytest.mark.parametrize("send", [chat, complete])
def test_fields_reach_the_engine(server: FakeServer, send: Callable[..., object]) -> None:
    send(server, priority=-3, timeout=2.5, cache_salt="s")
    assert server.last.terms == Terms(cache_salt=b"s", priority=-3, timeout_s=2.5)
    send(server)
    assert server.last.terms == Terms()


@pytest.mark.parametrize("send", [chat, complete])
@pytest.mark.parametrize("fields", [{"priority": 1.5}, {"priority": 2**31}, {"timeout": 0}, {"timeout": "5"}])
def test_bad_ones_are_named(server: FakeServer, send: Callable[..., object], fields: dict[str, object]) -> None:
    assert error_of(send(server, **fields))["param"] == next(iter(fields))  # type: ignore[arg-type]


def test_a_deadline_without_a_token_is_a_504_that_clients_do_not_repeat(tmp_path: Path) -> None:
    server = fake_server(tmp_path, FakeStreams(script=lambda *_: [DeadlineError("too late")]))
    response = chat(server)
    assert (response.status_code, error_of(response)["code"]) == (504, "deadline_exceeded")
    assert response.headers["x-should-retry"] == "false"


class Loop:
    """Streams whose worker is a list and whose clock is a number."""

    def __init__(self, folder: Path, max_request_s: float | None = None) -> None:
        self.sent: list[Submit | Cancel] = []
        limits = Limits(
            max_model_len=64, cache_tokens=64, max_live=9, eos_ids=frozenset({EOS}), max_request_s=max_request_s
        )
        self.streams = Streams(
            load_byte_tokenizer(folder),
            limits,
            send=self.sent.append,
            read_status=lambda: pytest.fail("nobody asks"),
            clock=lambda: 100.0,
        )

    def submits(self) -> list[Submit]:
        return [message for message in self.sent if isinstance(message, Submit)]


@pytest.mark.parametrize(
    ("asked", "limit", "deadline_s"), [(None, None, None), (5, None, 105), (None, 7, 107), (5, 7, 105), (8, 7, 107)]
)
def test_the_earlier_deadline_counts(
    tmp_path: Path, asked: float | None, limit: float | None, deadline_s: float
) -> None:
    async def test() -> None:
        loop = Loop(tmp_path, limit)
        loop.streams.open_many([(65,), (66,)], SamplingParams(), 2, terms=Terms(timeout_s=asked, priority=4))
        assert [submit.deadline_s for submit in loop.submits()] == [deadline_s] * 4
        assert {submit.priority for submit in loop.submits()} == {4}
        assert [submit.request for submit in loop.submits()] == [0, 0, 2, 2]

    asyncio.run(test())


def test_one_choice_has_no_request_to_share_with(tmp_path: Path) -> None:
    async def test() -> None:
        loop = Loop(tmp_path)
        loop.streams.open_many([(65,)], SamplingParams())
        assert [submit.request for submit in loop.submits()] == [None]

    asyncio.run(test())


async def read(stream: RequestStream) -> list[Delta]:
    return [delta async for delta in stream]


def test_without_any_token_the_whole_request_fails(tmp_path: Path) -> None:
    async def test() -> None:
        loop = Loop(tmp_path)
        [stream] = loop.streams.open_many([(65,)], SamplingParams(), 2)
        loop.streams.dispatch([SequenceOutput(n, finish_reason=FinishReason.TIMEOUT) for n in (0, 1)])
        with pytest.raises(DeadlineError):
            await read(stream)
        assert loop.streams.num_live == 0

    asyncio.run(test())


def test_what_one_choice_or_prompt_has_is_not_lost_for_what_another_lacks(tmp_path: Path) -> None:
    async def test() -> None:
        loop = Loop(tmp_path)
        streams = loop.streams.open_many([(65,), (66,)], SamplingParams(), 2)
        loop.streams.dispatch([SequenceOutput(1, (72, 105))])
        loop.streams.dispatch([SequenceOutput(n, finish_reason=FinishReason.TIMEOUT) for n in range(4)])
        texts = [{}, {}]
        for number, stream in enumerate(streams):
            for delta in await read(stream):
                texts[number][delta.index] = texts[number].get(delta.index, "") + delta.text
                assert delta.finish_reason in (None, FinishReason.TIMEOUT)
        assert texts == [{0: "", 1: "Hi"}, {0: "", 1: ""}]
        assert not any(isinstance(message, Cancel) for message in loop.sent), "the worker has ended them itself"

    asyncio.run(test())
