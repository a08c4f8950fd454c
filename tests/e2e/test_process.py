"""A real process on the real model, used as people use it: the openai client, curl, LangChain, signals, bad starts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, NotFoundError, OpenAI

from mtplx.model.native.library import load_library
from mtplx.server.openai import main
from tests.e2e.server import running_server
from tests.faults import PATIENCE_S

HELLO: list[Any] = [{"role": "user", "content": "Say hello."}]


@pytest.fixture
def client(live_server_url: str) -> Any:
    with OpenAI(base_url=f"{live_server_url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def model(client: OpenAI) -> str:
    return client.models.list().data[0].id


@pytest.mark.real_model
def test_the_openai_client_gets_the_same_answer_streamed_and_not(client: OpenAI, model: str) -> None:
    for _ in range(2):  # the second finds the prompt in the cache, as the streamed one will
        whole = client.chat.completions.create(model=model, messages=HELLO, max_tokens=12, temperature=0)
    chunks = list(
        client.chat.completions.create(
            model=model,
            messages=HELLO,
            max_tokens=12,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content != ""
    assert chunks[-1].usage == whole.usage
    assert whole.usage is not None
    assert 0 < whole.usage.completion_tokens <= 12
    assert whole.system_fingerprint


@pytest.mark.real_model
def test_the_default_is_the_native_runner_and_says_so(live_server_url: str) -> None:
    status = httpx.get(f"{live_server_url}/v1/status", timeout=PATIENCE_S).json()
    assert (status["runner"], status["build"]) == ("native", load_library().build)
    assert (status["quantization"], status["kv_cache_dtype"], status["exact"]) == ("q4_1+q8_0", "float16", True)
    assert status["build"] in status["system_fingerprint"]


@pytest.mark.real_model
def test_one_start_up_line_says_why_the_runner_is_not_native() -> None:
    flags = ("--kv-cache-tokens", "1024", "--max-model-len", "1024")
    with running_server("--dtype", "float32", *flags) as server:
        (line,) = (line for line in server.lines if line.startswith("runner "))
    assert "torch on cpu, float32 (not native: --dtype float32 was asked for); exact:" in line


@pytest.mark.real_model
def test_the_async_client_runs_requests_together(live_server_url: str, model: str) -> None:
    async def ask_all() -> list[str | None]:
        async with AsyncOpenAI(base_url=f"{live_server_url}/v1", api_key="none") as client:
            answers = await asyncio.gather(
                *(
                    client.chat.completions.create(
                        model=model, messages=HELLO, max_tokens=8, seed=seed, temperature=1.0
                    )
                    for seed in (1, 2, 1)
                )
            )
        return [answer.choices[0].message.content for answer in answers]

    first, other, again = asyncio.run(ask_all())
    assert first == again
    assert first != other


@pytest.mark.real_model
def test_models_can_be_listed_and_retrieved_and_others_are_404(client: OpenAI, model: str) -> None:
    assert client.models.retrieve(model).id == model
    with pytest.raises(NotFoundError) as caught:
        client.chat.completions.create(model="gpt-nothing", messages=HELLO)
    assert caught.value.code == "model_not_found"


@pytest.mark.real_model
def test_curl(live_server_url: str, model: str) -> None:
    body = json.dumps({"model": model, "prompt": "Once upon a time", "max_tokens": 4})
    command = ["curl", "-sS", "--fail", f"{live_server_url}/v1/completions", "-H", "Content-Type: application/json"]
    done = subprocess.run([*command, "-d", body], capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout)["usage"]["completion_tokens"] == 4


@pytest.mark.real_model
def test_langchain_answers_and_streams(live_server_url: str, model: str) -> None:
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    chat = ChatOpenAI(
        model=model, base_url=f"{live_server_url}/v1", api_key=SecretStr("none"), temperature=0, max_tokens=8, seed=3
    )
    answer = chat.invoke("Say hello.").text
    assert answer
    assert "".join(piece.text for piece in chat.stream("Say hello.")) == answer


@pytest.mark.real_model
def test_the_in_process_engine_gives_the_servers_answer(live_server_url: str, client: OpenAI, model: str) -> None:
    from mtplx import Engine
    from mtplx.sampling_params import SamplingParams

    params = SamplingParams(temperature=0.8, seed=11, max_tokens=10)
    with Engine(kv_cache_tokens=1024, max_model_len=1024) as engine:
        [mine] = engine.generate("The capital of France is", params)
        with_ids = engine.generate([mine.prompt_token_ids, [5, 6, 7]], params)
    theirs = client.completions.create(
        model=model, prompt="The capital of France is", temperature=0.8, seed=11, max_tokens=10
    )
    assert theirs.choices[0].text == mine.text
    assert with_ids[0] == mine
    assert len(with_ids[1].token_ids) <= 10


@pytest.mark.real_model
def test_sigterm_lets_a_running_stream_end() -> None:
    flags = ("--kv-cache-tokens", "1024", "--max-model-len", "1024", "--drain-timeout-s", "600")
    with running_server(*flags) as server:
        body = {"model": _model(server.url), "prompt": "Count: 1, 2,", "max_tokens": 24, "stream": True}
        data: list[str] = []
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=PATIENCE_S) as response:
            for line in response.iter_lines():
                if line.startswith("data: "):
                    data.append(line)
                if len(data) == 2:
                    os.kill(server.process.pid, signal.SIGTERM)
        assert data[-1] == "data: [DONE]"
        assert json.loads(data[-2].removeprefix("data: "))["choices"][0]["finish_reason"] in ("length", "stop")
        assert server.process.wait(PATIENCE_S) == 0


@pytest.mark.real_model
def test_a_taken_port_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = _serve("--port", str(taken.getsockname()[1]), "--kv-cache-tokens", "1024", "--max-model-len", "1024")
    assert done.returncode == 2
    assert "can't listen on 127.0.0.1" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (["--model", "./no/such/folder"], 1, "no/such/folder"),
        (["--model", "nothing-known"], 1, "nothing-known"),
        (["--scheduler-mode", "mtp_batch", "--draft-head", "none"], 2, "--scheduler-mode mtp_batch is not available"),
        (["--scheduler-mode", "hyper", "--draft-head", "none"], 2, "--scheduler-mode hyper is not available"),
        (["--scheduler-mode", "mtp_cohort_experimental"], 2, "--experimental-mtp-cohorts"),
        (["--draft-head", "no/such/head"], 1, "no/such/head"),
        (["--scheduler-mode", "ar_batch", "--draft-depth", "2"], 2, "ar_batch never drafts"),
        (["--draft-depth", "1", "--draft-head", "none"], 2, "--draft-depth"),
        (["--runner", "native", "--device", "cuda"], 2, "--runner"),
        (["--scheduler-mode", "turbo"], 2, "turbo"),
    ],
)
def test_a_start_that_can_not_work_is_refused_in_one_sentence(
    flags: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process; what becomes of it in one of its own is seen above and below."""
    assert main(["serve", "--port", "0", *flags]) == code
    said = capsys.readouterr()
    assert said.err.startswith("mtplx: ")
    assert said.err.count("\n") == 1
    assert says in said.err
    assert said.out == ""


def test_a_truncated_gguf_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x03\x00\x00\x00 and nothing more")
    done = _serve("--port", "0", "--model", str(broken))
    assert done.returncode == 1
    assert "broken.gguf" in done.stderr
    assert "Traceback" not in done.stderr


def _serve(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mtplx.server.openai", "serve", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def _model(url: str) -> str:
    name: str = httpx.get(f"{url}/v1/models", timeout=PATIENCE_S).json()["data"][0]["id"]
    return name
