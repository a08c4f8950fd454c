"""A whole server in this process, on a real socket: HTTP, worker thread and scheduler as shipped, the model a fake."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from mtplx.config import Settings, read_api_keys
from mtplx.model.weights import ModelFolder
from mtplx.server.admission import Limits
from mtplx.server.assemble import Assembly, build_core
from mtplx.server.openai import Service
from mtplx.text.answer_format import resolve_answer_format
from mtplx.text.chat import ChatTemplate
from mtplx.text.grammar import GrammarCompiler
from mtplx.text.tokenizer import Tokenizer
from tests.fakes import FakeDraftingRunner, FakeRunner, write_byte_tokenizer
from tests.faults import PATIENCE_S

MODEL = "fake-model"
KEEP_ALIVE_S = 600.0  # neither side hangs up in a test: on a stalled machine the other may just have begun to send
UVICORNS_SLEEP_S = 0.1
COHORT = "mtp_cohort_experimental"
MODES = ("serial", "cooperative", "ar_batch", COHORT)
DRAFTING_MODES = ("serial", "cooperative", "mtp_batch", COHORT, "hyper")
NEED_HEAD = ("mtp_batch", "hyper")
ALL_MODES = (*MODES, *NEED_HEAD)


def fake_for(mode: str, **fake: Any) -> FakeRunner:
    """A runner that the mode can run on: with a head that is often right where it needs one."""
    return FakeDraftingRunner(0.6, **fake) if mode in NEED_HEAD else FakeRunner(**fake)


@dataclass(frozen=True, slots=True)
class LiveServer:
    url: str
    runner: FakeRunner
    service: Service
    client: httpx.Client  # for any number of threads

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """The JSON answer of a request that must succeed."""
        response = self.client.post(path, json={"model": MODEL, **body})
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.client.get("/v1/status").json()
        return answer


@contextmanager
def live_server(
    folder: Path, runner: FakeRunner, mode: str = "ar_batch", *, send_buffer: int | None = None, **settings: Any
) -> Iterator[LiveServer]:
    """Serves `runner` in that mode until the block ends; `folder` is a scratch folder for its tokenizer.

    `send_buffer` is how many bytes the system may hold for a client, by default megabytes.
    """
    given: dict[str, Any] = {"scheduler_mode": mode, "port": 0, "drain_timeout_s": 5}
    if mode in (
        COHORT,
        *NEED_HEAD,
    ):  # at a fixed depth, since costs would be measured with the fake's script and faults
        given |= {"experimental_mtp_cohorts": True, "draft_depth": 4}
    assembly = fake_assembly(folder, runner, Settings(**{**given, **settings}))
    service = Service(assembly)
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    if send_buffer is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)  # accepted connections inherit it
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    service._server.config.timeout_keep_alive = KEEP_ALIVE_S
    thread = threading.Thread(target=_serve, args=(service, listener))
    thread.start()
    while thread.is_alive() and not service._server.started:
        time.sleep(0.001)  # what it prints at its start is not of what the test does
    limits = httpx.Limits(max_connections=None, keepalive_expiry=KEEP_ALIVE_S)
    client = httpx.Client(base_url=url, timeout=PATIENCE_S, limits=limits, verify=False)  # certificates take 20 ms
    try:
        yield LiveServer(url, runner, service, client)
    finally:
        client.close()
        service.stop()
        thread.join(PATIENCE_S)
        listener.close()
        assert not thread.is_alive(), "the server did not stop"


def _serve(service: Service, listener: socket.socket) -> None:
    with asyncio.Runner(loop_factory=_HastyLoop) as runner:
        runner.run(service.run(listener))


class _HastyLoop(asyncio.SelectorEventLoop):
    """Shortens uvicorn's sleeps, before it sees that it is to stop and after: tests stop hundreds of servers."""

    def call_later(self, delay: float, *args: Any, **context: Any) -> asyncio.TimerHandle:
        return super().call_later(0.005 if delay == UVICORNS_SLEEP_S else delay, *args, **context)


def fake_assembly(folder: Path, runner: FakeRunner, settings: Settings) -> Assembly:
    write_byte_tokenizer(folder)
    core = build_core(settings.model_copy(update={"prefill_chunk_tokens": settings.prefill_chunk_tokens or 16}), runner)
    cache_tokens = runner.num_blocks * runner.block_size
    tokenizer, chat_template = Tokenizer.load(folder), ChatTemplate.load(folder)
    return Assembly(
        settings=settings,
        api_keys=read_api_keys(settings),
        model=ModelFolder(path=folder, name=MODEL, source="made in a test"),
        model_name=MODEL,
        core=core,
        tokenizer=tokenizer,
        chat_template=chat_template,
        answer_format=resolve_answer_format(chat_template, settings.tool_parser, settings.reasoning_parser),
        grammars=GrammarCompiler(tokenizer, vocab_size=runner.spec.vocab_size, eos_ids=runner.spec.eos_ids),
        limits=Limits(
            max_model_len=min(settings.max_model_len or runner.spec.max_position, runner.spec.max_position),
            cache_tokens=cache_tokens,
            max_live=core.scheduler.max_running + settings.max_queue,
            max_live_per_tenant=settings.max_requests_per_key,
            eos_ids=runner.spec.eos_ids,
            max_request_s=settings.request_timeout_s,
        ),
        fingerprint="fake",
        runner_reason="a fake",
    )
