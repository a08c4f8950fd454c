"""Grammars are compiled few at once, tenants take turns, and whoever waits counts against all limits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from mtplx.errors import RequestError
from mtplx.sampling_params import Grammar
from mtplx.server.grammar_line import GrammarLine
from mtplx.text.grammar import CompiledGrammar, GrammarCompiler
from tests.e2e.test_behaviours_load import eventually
from tests.fakes import FakeRunner
from tests.faults import PATIENCE_S
from tests.live import MODEL, LiveServer, live_server


class HeldCompiler:
    """Compiles nothing; each compilation waits until it is let go, and refuses the grammar then."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._may_end = threading.Semaphore(0)

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        self.begun.append(grammar.source)
        assert self._may_end.acquire(timeout=PATIENCE_S)
        raise RequestError(grammar.source)

    def let_go(self, count: int = 1) -> None:
        self._may_end.release(count)


async def until(claim: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not claim():
            await asyncio.sleep(0.001)


def ask(line: GrammarLine, name: str) -> asyncio.Task[CompiledGrammar]:
    """Asks for the grammar of that name, whose first letter is the tenant."""
    return asyncio.create_task(line.compile(Grammar("regex", name), name[:1].encode()))


def test_tenants_take_turns() -> None:
    async def test() -> None:
        compiler = HeldCompiler()
        line = GrammarLine(compiler, max_compiles=1)  # type: ignore[arg-type]
        asked = [ask(line, name) for name in ("a0", "a1", "a2", "a3", "b0", "b1", "c0")]
        for count in range(1, 8):
            await until(lambda: len(compiler.begun) == count)  # noqa: B023
            compiler.let_go()
        errors = await asyncio.gather(*asked, return_exceptions=True)
        assert [str(error) for error in errors] == ["a0", "a1", "a2", "a3", "b0", "b1", "c0"]
        assert compiler.begun == ["a0", "a1", "b0", "c0", "a2", "b1", "a3"]

    asyncio.run(test())


def test_who_leaves_is_not_compiled_for_but_holds_a_place_that_is_busy() -> None:
    async def test() -> None:
        compiler = HeldCompiler()
        line = GrammarLine(compiler, max_compiles=2)  # type: ignore[arg-type]
        asked = [ask(line, name) for name in ("a0", "a1", "a2", "b0", "a3")]
        await until(lambda: len(compiler.begun) == 2)
        for task in asked[:4]:
            task.cancel()
        left = await asyncio.gather(*asked[:4], return_exceptions=True)
        assert [type(error) for error in left] == [asyncio.CancelledError] * 4
        assert sorted(compiler.begun) == ["a0", "a1"], "the threads of those who left go on"
        compiler.let_go(3)
        with pytest.raises(RequestError, match="a3"):
            await asked[4]
        assert compiler.begun[2:] == ["a3"]

    asyncio.run(test())


def post(server: LiveServer, key: str, regex: str, **fields: object) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    body = {"model": MODEL, "prompt": "x", "max_tokens": 9, "guided_regex": regex, **fields}
    return server.client.post("/v1/completions", json=body, headers=headers)


def test_who_waits_for_a_grammar_counts_and_spends_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, compiler_of_ours = threading.Event(), GrammarCompiler.compile

    def held(self: GrammarCompiler, grammar: Grammar) -> CompiledGrammar:
        assert gate.wait(PATIENCE_S)
        return compiler_of_ours(self, grammar)

    monkeypatch.setattr(GrammarCompiler, "compile", held)
    limits = {"api_key": (SecretStr("one"), SecretStr("two")), "max_requests_per_key": 3, "max_queue": 1}
    with (
        live_server(tmp_path, FakeRunner(), decode_batch_max=4, **limits) as server,
        ThreadPoolExecutor(8) as pool,
    ):
        waiting = [pool.submit(post, server, "one", f"a{number}") for number in range(3)]
        waiting.append(pool.submit(post, server, "two", "b", timeout=600))
        assert eventually(lambda: server.service.streams._reserved.total() == 4)
        share = post(server, "one", "c")
        assert (share.status_code, share.json()["error"]["code"]) == (429, "too_many_requests")
        late = post(server, "two", "d", timeout=0.01)
        assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")
        waiting.append(pool.submit(post, server, "two", "e"))
        assert eventually(lambda: server.service.streams._reserved.total() == 5)
        full = post(server, "two", "f")
        assert (full.status_code, full.json()["error"]["code"]) == (503, "overloaded")
        gate.set()
        answers = [answer.result(PATIENCE_S) for answer in waiting]
        assert [answer.json()["choices"][0]["text"] for answer in answers] == ["a0", "a1", "a2", "b", "e"]
        assert server.service.streams._reserved.total() == 0
