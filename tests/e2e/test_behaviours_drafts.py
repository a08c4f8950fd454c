"""Speculation over HTTP: answers are those without drafts, ends are per token, reports say what was done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeDraftingRunner, FakeRunner, saying
from tests.live import DRAFTING_MODES, MODEL, LiveServer, live_server

PROMPTS = ["a", "of three", "a prompt of some words", "x" * 37, "12345", "the quick brown fox", "y" * 64, "zz " * 30]
HEADS = [1.0, 0.0, 0.6]
Answer = dict[str, Any]


def ask(server: LiveServer, prompt: str, **body: Any) -> Answer:
    return server.post("/v1/completions", prompt=prompt, return_token_ids=True, **body)


def essence(answer: Answer) -> list[tuple[Any, ...]]:
    """What must not depend on drafts."""
    return [(c["text"], c["token_ids"], c["logprobs"], c["finish_reason"]) for c in answer["choices"]]


@contextmanager
def load(server: LiveServer) -> Iterator[None]:
    """Other requests of other lengths, temperatures, seeds and draft caps while the block runs."""
    bodies = [
        {
            "prompt": "n" * (7 * k + 1),
            "temperature": 0.3 * k,
            "max_tokens": 5 + 9 * k,
            **({"seed": k} if k % 2 else {"draft_depth": k}),
        }
        for k in range(6)
    ]
    with ThreadPoolExecutor(6) as pool:
        running = [pool.submit(lambda b=body: server.post("/v1/completions", **b)) for body in bodies]
        yield
        for future in running:
            future.result()


def bodies() -> list[dict[str, Any]]:
    return [
        {"temperature": 0, "max_tokens": 12},
        {"temperature": 0.8, "top_p": 0.95, "max_tokens": 12, "seed": 7, "logprobs": 3},
        {"temperature": 0, "max_tokens": 24, "frequency_penalty": 2, "logprobs": 0},
        {"temperature": 1, "max_tokens": 24, "presence_penalty": 1.5, "repetition_penalty": 1.3, "seed": 5},
        {"temperature": 1.2, "max_tokens": 30, "seed": 3, "min_tokens": 8, "stop": ["a", "b", "c", "0"]},
        {"temperature": 1, "max_tokens": 5, "seed": 9, "n": 3},
    ]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> list[list[tuple[Any, ...]]]:
    """Every body for every prompt, alone, serial, depth 0."""
    with live_server(tmp_path_factory.mktemp("oracle"), FakeRunner(), "serial", prefill_chunk_tokens=512) as server:
        return [essence(ask(server, prompt, **body)) for body in bodies() for prompt in PROMPTS]


@pytest.mark.parametrize("mode", DRAFTING_MODES)
@pytest.mark.parametrize("p_right", HEADS)
@pytest.mark.parametrize(("depth", "chunk", "concurrency"), [(1, 16, 8), (4, 3, 4), (8, 64, 2), ("auto", 16, 8)])
def test_b15_b16_b17_b19_b29_b31_answers_do_not_depend_on_drafts(
    tmp_path: Path,
    mode: str,
    p_right: float,
    depth: int | str,
    chunk: int,
    concurrency: int,
    oracle: list[list[tuple[Any, ...]]],
) -> None:
    runner = FakeDraftingRunner(p_right)
    with (
        live_server(tmp_path, runner, mode, prefill_chunk_tokens=chunk, draft_depth=depth) as server,
        ThreadPoolExecutor(concurrency) as pool,
    ):
        todo = [(prompt, body) for body in bodies() for prompt in PROMPTS]
        answers = list(pool.map(lambda pair: essence(ask(server, pair[0], **pair[1])), todo))
        drafts = server.status()["drafts"]
    assert answers == oracle
    if mode == "serial" and depth == "auto":
        assert drafts["num_drafts"] == 0
    else:
        assert drafts["num_drafts"] > 0
    if p_right == 0.0:
        assert drafts["num_accepted_tokens"] == 0
    if p_right == 1.0:
        assert drafts["num_accepted_tokens"] == drafts["num_draft_tokens"]


@pytest.mark.parametrize("mode", DRAFTING_MODES)
def test_b26_the_seed_alone_decides(tmp_path: Path, mode: str) -> None:
    body = {"temperature": 1, "max_tokens": 16}
    with live_server(tmp_path, FakeDraftingRunner(0.6), mode, draft_depth=4) as server:
        alone = ask(server, "tell me", seed=7, **body)
        with load(server):
            loaded = ask(server, "tell me", seed=7, **body)
            other = ask(server, "tell me", seed=8, **body)
            unseeded = [ask(server, "tell me", **body) for _ in range(3)]
        replayed = ask(server, "tell me", seed=unseeded[0]["seed"], draft_depth=0, **body)
    assert essence(loaded) == essence(alone)
    assert essence(other) != essence(alone)
    assert len({str(essence(answer)) for answer in unseeded}) == 3
    assert essence(replayed) == essence(unseeded[0])


@pytest.mark.parametrize("mode", DRAFTING_MODES)
@pytest.mark.parametrize("p_right", [1.0, 0.0])
@pytest.mark.parametrize("depth", [0, 1, 2, 4])
class TestEnds:
    def test_b1_a_stop_string_in_an_accepted_block_ends_the_text_before_it(
        self, tmp_path: Path, mode: str, p_right: float, depth: int
    ) -> None:
        runner = FakeDraftingRunner(p_right, script=saying("abcdefgh", prompt_len=1))
        with live_server(tmp_path, runner, mode, draft_depth=depth) as server:
            answer = ask(server, "p", temperature=0, max_tokens=5, stop=["d"])
        (choice,) = answer["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("abc", "stop")
        assert answer["usage"]["completion_tokens"] == 4
        spec = answer["metrics"]["speculative_decoding"]
        assert spec is None or spec["num_accepted_draft_tokens"] <= 4

    def test_b5_nothing_follows_eos_unless_it_is_ignored(
        self, tmp_path: Path, mode: str, p_right: float, depth: int
    ) -> None:
        runner = FakeDraftingRunner(p_right, script=saying("abc", prompt_len=1, then=256))
        with live_server(tmp_path, runner, mode, draft_depth=depth) as server:
            ended = ask(server, "p", temperature=0, max_tokens=9)
            ignored = ask(server, "p", temperature=0, max_tokens=9, ignore_eos=True)
        assert essence(ended) == [("abc", [97, 98, 99, 256], None, "stop")]
        assert ignored["choices"][0]["token_ids"] == [97, 98, 99, *[256] * 6]
        assert ignored["choices"][0]["finish_reason"] == "length"

    def test_b6_b7_min_tokens_counts_each_rows_tokens(
        self, tmp_path: Path, mode: str, p_right: float, depth: int
    ) -> None:
        runner = FakeDraftingRunner(p_right, script=saying("abcdabcdabcd", prompt_len=1))
        with live_server(tmp_path, runner, mode, draft_depth=depth) as server, ThreadPoolExecutor(3) as pool:
            caps = [None, 0, 1]
            answers = list(
                pool.map(
                    lambda cap: ask(
                        server, "p", temperature=0, max_tokens=20, min_tokens=8, stop=["c"], draft_depth=cap
                    ),
                    caps,
                )
            )
        for answer in answers:
            assert answer["choices"][0]["text"] == "abcdabcdab"
            assert answer["choices"][0]["finish_reason"] == "stop"

    def test_b12_exactly_max_tokens(self, tmp_path: Path, mode: str, p_right: float, depth: int) -> None:
        with live_server(tmp_path, FakeDraftingRunner(p_right), mode, draft_depth=depth) as server:
            answer = ask(server, "p", temperature=0, max_tokens=64, ignore_eos=True)
        assert (answer["usage"]["completion_tokens"], len(answer["choices"][0]["token_ids"])) == (64, 64)


def test_b42_a_short_request_joins_a_long_answer_within_a_few_steps(tmp_path: Path) -> None:
    runner = FakeDraftingRunner(0.6, num_blocks=2048, max_position=4000)
    with live_server(tmp_path, runner, "mtp_batch", draft_depth=4) as server, ThreadPoolExecutor(9) as pool:
        long = pool.submit(ask, server, "long", temperature=0, max_tokens=900, ignore_eos=True)
        while len(runner.plans) < 20:
            assert not long.done()
        short = [pool.submit(ask, server, f"s{k}", temperature=0, max_tokens=4) for k in range(8)]
        for future in short:
            future.result()
        assert not long.done()
        long.result()
    waits = []
    for seq_id in range(1, 9):
        rows = [(step, row) for step, plan in enumerate(runner.plans) for row in plan.rows if row.seq_id == seq_id]
        first_token = next(step for step, row in rows if row.num_logits)
        waits.append(first_token - rows[0][0])
    assert max(waits) <= 4, "from the step that took it in to the step of its first token"


class TestReports:
    def test_metrics_of_an_answer_have_vllms_shape_and_add_up(self, tmp_path: Path) -> None:
        runner = FakeDraftingRunner(0.6)
        with live_server(tmp_path, runner, "mtp_batch", draft_depth=3) as server:
            answer = ask(server, "hello", temperature=0, max_tokens=40, ignore_eos=True)
            several = ask(server, "hello", temperature=1, max_tokens=40, n=2)
            capped = ask(server, "hello", temperature=0, max_tokens=40, draft_depth=0)
            status = server.status()["drafts"]
        rows = [row for plan in runner.plans for row in plan.rows if row.seq_id == 0 and row.num_drafts]
        spec = answer["metrics"]["speculative_decoding"]
        assert spec["num_spec_steps"] == len(rows)
        assert spec["num_draft_tokens"] == sum(row.num_drafts for row in rows)
        histogram = spec["acceptance_histogram"]
        assert len(histogram) == 4
        assert sum(histogram) == len(rows)
        accepted = sum(n * steps for n, steps in enumerate(histogram))
        assert spec["num_accepted_draft_tokens"] == accepted > 0
        assert spec["draft_acceptance_rate"] == accepted / spec["num_draft_tokens"]
        assert spec["mean_acceptance_length"] == 1 + accepted / len(rows)
        assert several["metrics"] == capped["metrics"] == {"speculative_decoding": None}
        assert status["num_drafts"] > len(rows)
        assert status["depth_histogram"]["0"] >= 39, "the capped one's rows, none of them a draft"
        assert sum(status["accepted_by_position"]) == status["num_accepted_tokens"]
        assert status["costs_ms"] is None

    @pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
    def test_a_stream_has_them_in_its_last_chunk(self, tmp_path: Path, path: str) -> None:
        prompt = {"prompt": "hi"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "hi"}]}
        body = {"model": MODEL, **prompt, "temperature": 0, "max_tokens": 30, "ignore_eos": True, "draft_depth": 2}
        with live_server(tmp_path, FakeDraftingRunner(1.0), "mtp_batch", draft_depth=4) as server:
            whole = server.post(path, **{k: v for k, v in body.items() if k != "model"})
            streamed = server.client.post(
                path, json={**body, "stream": True, "stream_options": {"include_usage": True}}
            ).text
        chunks = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
        assert chunks[-1]["metrics"] == whole["metrics"]
        assert not any("metrics" in chunk for chunk in chunks[:-1])
        assert whole["metrics"]["speculative_decoding"]["acceptance_histogram"][2] > 5
        assert len(whole["metrics"]["speculative_decoding"]["acceptance_histogram"]) == 3, "the request's cap is kept"

    def test_prometheus_sees_our_names_and_vllms(self, tmp_path: Path) -> None:
        with live_server(tmp_path, FakeDraftingRunner(0.6), "mtp_batch", draft_depth=3) as server:
            ask(server, "hello", temperature=0, max_tokens=40, ignore_eos=True)
            drafts = server.status()["drafts"]
            page = server.client.get("/metrics").text
        values = dict(line.rsplit(" ", 1) for line in page.splitlines() if line and line[0] != "#")
        for ours, theirs, name in (
            ("mtplx_drafts", "num_drafts", "num_drafts"),
            ("mtplx_draft_tokens", "num_draft_tokens", "num_draft_tokens"),
            ("mtplx_accepted_tokens", "num_accepted_tokens", "num_accepted_tokens"),
        ):
            assert float(values[f"{ours}_total"]) == float(values[f"vllm:spec_decode_{theirs}_total"]) == drafts[name]
        for position, accepted in enumerate(drafts["accepted_by_position"]):
            name = f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{position}"}}'
            assert float(values[name]) == accepted
        assert float(values['mtplx_draft_depths_total{depth="3"}']) == drafts["depth_histogram"]["3"]

    def test_auto_shows_its_costs_and_its_reason(self, tmp_path: Path) -> None:
        with live_server(tmp_path, FakeDraftingRunner(0.0), "mtp_batch") as server:
            ask(server, "hello", temperature=0, max_tokens=300, ignore_eos=True)
            drafts = server.status()["drafts"]
        assert set(drafts["costs_ms"]["step"]) == {"1", "2", "4", "8", "16", "32", "64", "128"}
        assert drafts["why_none"] is None or "cost more" in drafts["why_none"]
        assert drafts["num_failed"] == 0

    def test_without_a_head_the_status_says_so(self, tmp_path: Path) -> None:
        with live_server(tmp_path, FakeRunner(), "ar_batch") as server:
            answer = ask(server, "hello", max_tokens=3, draft_depth=4)
            drafts = server.status()["drafts"]
        assert answer["metrics"] == {"speculative_decoding": None}
        assert "no draft head" in drafts["why_none"]


@pytest.mark.parametrize("depth", [-1, 9, 1.5, "2"])
def test_a_wrong_draft_depth_is_refused_by_name(tmp_path: Path, depth: Any) -> None:
    with live_server(tmp_path, FakeDraftingRunner(), "mtp_batch") as server:
        response = server.client.post("/v1/completions", json={"model": MODEL, "prompt": "x", "draft_depth": depth})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "draft_depth"
