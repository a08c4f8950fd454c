"""Speculation over HTTP: answers are those without drafts, ends are per token, reports say what was done."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtplx.batching.state import StepPlan
from tests.e2e.test_behaviours_load import Gate, eventually
from tests.fakes import EOS, FakeDraftingRunner, FakeRunner, History
from tests.faults import PATIENCE_S
from tests.live import COHORT, DRAFTING_MODES, MODEL, LiveServer, live_server

PROMPTS = ["a", "of three", "a prompt of some words", "x" * 37, "12345", "the quick brown fox", "y" * 64, "zz " * 30]
RIGHT, WRONG, OFTEN = 1.0, 0.0, 0.6  # how often the head is right
# Depth, head, chunk, concurrency: every depth, and each head, chunk and concurrency with several depths.
COVERING = (
    (0, OFTEN, 16, 8),
    (1, RIGHT, 16, 1),
    (2, WRONG, 3, 8),
    (3, OFTEN, 3, 2),
    (4, RIGHT, 64, 8),
    (8, OFTEN, 16, 8),
    ("auto", WRONG, 16, 2),
    ("auto", OFTEN, 3, 8),
)
Answer = dict[str, Any]


def ask(server: LiveServer, prompt: str, **body: Any) -> Answer:
    return server.post("/v1/completions", prompt=prompt, return_token_ids=True, **body)


def ask_together(server: LiveServer, gate: Gate, bodies: Sequence[dict[str, Any]]) -> list[Answer]:
    """Sends all of them; the first step has the first alone, and goes on when all are there."""
    with ThreadPoolExecutor(len(bodies)) as pool:
        asked = [pool.submit(ask, server, **bodies[0])]
        assert gate.reached.wait(PATIENCE_S)
        asked += [pool.submit(ask, server, **body) for body in bodies[1:]]
        assert eventually(lambda: server.service.streams.num_live == len(bodies))
        gate.open()
        return [answer.result() for answer in asked]


def essence(answer: Answer) -> list[tuple[Any, ...]]:
    """What must not depend on drafts."""
    return [(c["text"], c["token_ids"], c["logprobs"], c["finish_reason"]) for c in answer["choices"]]


def accepted(answer: Answer) -> int:
    spec = answer["metrics"]["speculative_decoding"]
    return spec["num_accepted_draft_tokens"] if spec else 0


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
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Serial, without a head: what it says of a prompt alone is right."""
    with live_server(tmp_path_factory.mktemp("plain"), FakeRunner(), "serial", prefill_chunk_tokens=512) as server:
        yield server


def pairs() -> list[tuple[str, dict[str, Any]]]:
    """Every body for every other prompt, every prompt with every other body."""
    return [(prompt, body) for i, body in enumerate(bodies()) for j, prompt in enumerate(PROMPTS) if (i + j) % 2]


@pytest.fixture(scope="module")
def oracle(plain: LiveServer) -> list[list[tuple[Any, ...]]]:
    return [essence(ask(plain, prompt, **body)) for prompt, body in pairs()]


@pytest.mark.parametrize("mode", DRAFTING_MODES)
@pytest.mark.parametrize(("depth", "p_right", "chunk", "concurrency"), COVERING)
def test_b16_b17_b19_b29_b31_answers_do_not_depend_on_drafts(
    tmp_path: Path,
    mode: str,
    depth: int | str,
    p_right: float,
    chunk: int,
    concurrency: int,
    oracle: list[list[tuple[Any, ...]]],
) -> None:
    runner = FakeDraftingRunner(p_right)
    with (
        live_server(tmp_path, runner, mode, prefill_chunk_tokens=chunk, draft_depth=depth) as server,
        ThreadPoolExecutor(concurrency) as pool,
    ):
        answers = list(pool.map(lambda pair: essence(ask(server, pair[0], **pair[1])), pairs()))
        drafts = server.status()["drafts"]
    assert answers == oracle
    if depth != "auto":
        assert (drafts["num_drafts"] > 0) == (depth != 0)
    elif mode == "serial":
        assert drafts["num_drafts"] == 0
    # elsewhere the costs decide, and a machine that stalls while they are measured makes drafts look dear
    if mode == COHORT:
        return  # what its texts guess has a luck of its own
    if p_right == WRONG:
        assert drafts["num_accepted_tokens"] == 0
    if p_right == RIGHT:
        assert drafts["num_accepted_tokens"] == drafts["num_draft_tokens"]


def test_b15_fifty_prompts_at_depths_0_1_and_4(tmp_path: Path, plain: LiveServer) -> None:
    prompts = [f"{k} " * (1 + k % 9) for k in range(50)]
    expected = [essence(ask(plain, prompt, temperature=0, max_tokens=10)) for prompt in prompts]
    with (
        live_server(tmp_path, FakeDraftingRunner(OFTEN), "mtp_batch", draft_depth=4) as server,
        ThreadPoolExecutor(8) as pool,
    ):
        for depth in (0, 1, 4):
            found = pool.map(lambda p, d=depth: ask(server, p, temperature=0, max_tokens=10, draft_depth=d), prompts)  # type: ignore[misc]
            assert [essence(answer) for answer in found] == expected
        assert {"0", "1", "4"} <= server.status()["drafts"]["depth_histogram"].keys()


def test_b17_rows_without_drafts_beside_rows_with_four(tmp_path: Path, plain: LiveServer) -> None:
    """One has no leave to draft, one is at its last token, one has just been prefilled, one has tokens banned."""
    together: list[dict[str, Any]] = [
        {"prompt": "drafts four", "max_tokens": 40, "ignore_eos": True},
        {"prompt": "no leave", "max_tokens": 30, "draft_depth": 0},
        {"prompt": "two tokens", "max_tokens": 2},
        {"prompt": "late " * 20, "max_tokens": 20},
        {"prompt": "banned", "max_tokens": 20, "min_tokens": 20, "logit_bias": {"65": -100, "66": 5}, "logprobs": 1},
    ]
    expected = [essence(ask(plain, temperature=0, **body)) for body in together]
    gate = Gate()
    runner = FakeDraftingRunner(OFTEN, fault=gate)
    with live_server(tmp_path, runner, "mtp_batch", prefill_chunk_tokens=16, draft_depth=4) as server:
        answers = ask_together(server, gate, [{**body, "temperature": 0} for body in together])
    assert [essence(answer) for answer in answers] == expected
    beside = [row for plan in runner.plans if any(row.num_drafts == 4 for row in plan.rows) for row in plan.rows]
    names = {row.seq_id: chr(row.token_ids[0]) for plan in runner.plans for row in plan.rows if row.start == 0}
    draftless = {names[row.seq_id] for row in beside if row.num_logits == len(row.token_ids) == 1}
    assert {"n", "t"} <= draftless, "no leave, and its last token"
    assert any(row.num_logits == 1 < len(row.token_ids) for row in beside), "just prefilled"
    assert any(names[row.seq_id] == "b" and row.num_drafts for row in beside), "with banned tokens, and drafts"


def test_b19_a_head_that_is_always_wrong_gives_one_right_token_a_step(tmp_path: Path, plain: LiveServer) -> None:
    body = {"prompt": "wrong", "temperature": 0, "max_tokens": 30, "ignore_eos": True}
    runner = FakeDraftingRunner(WRONG)
    with live_server(tmp_path, runner, "mtp_batch", draft_depth=4) as server:
        answer = ask(server, **body)
    assert essence(answer) == essence(ask(plain, **body))
    decode_rows = [row for plan in runner.plans for row in plan.rows if row.num_logits == len(row.token_ids)]
    assert len(decode_rows) == 29, "the first token came with the prompt"
    assert answer["metrics"]["speculative_decoding"]["mean_acceptance_length"] == 1.0
    assert answer["metrics"]["speculative_decoding"]["num_draft_tokens"] > 80


@pytest.mark.parametrize("mode", DRAFTING_MODES)
def test_b20_a_prompt_in_chunks_has_the_same_answer_and_acceptance(tmp_path: Path, mode: str) -> None:
    """The fake head asserts in every call that its cache is whole, at the chunks' edges too."""
    body = {"prompt": "many chunks " * 16, "temperature": 0, "max_tokens": 40, "ignore_eos": True}
    found = []
    for chunk in (16, 64, 512):
        runner = FakeDraftingRunner(OFTEN)
        with live_server(tmp_path, runner, mode, prefill_chunk_tokens=chunk, draft_depth=4) as server:
            answer = ask(server, **body)
            found.append((essence(answer), answer["metrics"]))
    assert found[0] == found[1] == found[2]
    assert 0 < accepted(answer) < answer["metrics"]["speculative_decoding"]["num_draft_tokens"]


@pytest.mark.parametrize("mode", DRAFTING_MODES)
def test_b26_the_seed_alone_decides(tmp_path: Path, mode: str, plain: LiveServer) -> None:
    """Seed 7 beside seeds 8 and 9 and some without, of other lengths and temperatures."""
    asked = {"prompt": "tell me", "temperature": 1, "max_tokens": 16}
    others = [
        {"prompt": "n" * (7 * k + 1), "temperature": 0.3 * k, "max_tokens": 5 + 9 * k, **({"seed": 9} if k % 2 else {})}
        for k in range(4)
    ]
    gate = Gate()
    with live_server(tmp_path, FakeDraftingRunner(OFTEN, fault=gate), mode, draft_depth=4) as server:
        together = [{**asked, "seed": 7}, {**asked, "seed": 8}, asked, asked, *others]
        seven, eight, *unseeded = ask_together(server, gate, together)[:4]
        replayed = ask(server, seed=unseeded[0]["seed"], draft_depth=0, **asked)
    assert essence(seven) == essence(ask(plain, seed=7, **asked))
    assert essence(eight) != essence(seven)
    assert len({str(essence(answer)) for answer in (seven, eight, *unseeded)}) == 4
    assert essence(replayed) == essence(unseeded[0])


class RepeatingHead(FakeDraftingRunner):
    """Model and head give every byte the same logit whatever came before: only penalties can change the token."""

    def _logits(self, history: History) -> np.ndarray:
        logits = np.full(260, -50.0)
        logits[list(b"abcdefgh")] = 4.0 - 0.25 * np.arange(8)
        return logits


@pytest.mark.parametrize(
    "penalty", [{"frequency_penalty": 2}, {"presence_penalty": 1.5}, {"repetition_penalty": 1.3}], ids=str
)
def test_b29_penalties_hold_at_every_token_of_an_accepted_block(tmp_path: Path, penalty: dict[str, float]) -> None:
    body = {"prompt": "ababab", "max_tokens": 40, "temperature": 0}
    with live_server(tmp_path, RepeatingHead(RIGHT), "mtp_batch", draft_depth=4) as server:
        free = ask(server, **body)
        without = ask(server, **body, **penalty, draft_depth=0)
        with_drafts = ask(server, **body, **penalty)
    assert set(free["choices"][0]["token_ids"]) == {ord("a")}
    assert len(set(without["choices"][0]["token_ids"])) > 1
    assert essence(with_drafts) == essence(without)
    assert accepted(without) == 0
    assert accepted(with_drafts) >= 30, "the head obeys the penalties too"


def test_b31_logprobs_of_accepted_tokens_are_those_without_drafts(tmp_path: Path) -> None:
    body = {"prompt": "logs", "max_tokens": 33, "temperature": 0, "logprobs": 3, "ignore_eos": True}
    with live_server(tmp_path, FakeDraftingRunner(RIGHT), "mtp_batch", draft_depth=4) as server:
        without, answer = ask(server, **body, draft_depth=0), ask(server, **body)
    assert essence(answer) == essence(without)
    assert accepted(answer) >= 24
    logprobs = answer["choices"][0]["logprobs"]
    assert len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == 33
    assert max(logprobs["token_logprobs"]) < 0.0


# By the prompt's only byte, what the model says; then it wants to end. Any other prompt is answered by a hash.
SAYINGS = {"p": b"abcdefgh", "q": b"abc", "r": b"abcdabcdabcd", "s": b""}


def scripted(history: History) -> int | None:
    text, index = SAYINGS.get(chr(history[0])), len(history) - 1
    if text is None:
        return None
    return text[index] if index < len(text) else EOS


@pytest.fixture(
    scope="module", params=[(mode, p) for mode in DRAFTING_MODES for p in (RIGHT, WRONG)], ids=lambda param: str(param)
)
def scripted_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    mode, p_right = request.param
    runner = FakeDraftingRunner(p_right, script=scripted)
    with live_server(tmp_path_factory.mktemp("scripted"), runner, mode, draft_depth=4) as server:
        yield server


@pytest.mark.parametrize("depth", [0, 1, 2, 4])
class TestEnds:
    """Where an answer ends inside what can be a block of accepted drafts."""

    def test_b1_a_stop_string_in_an_accepted_block_ends_the_text_before_it(
        self, scripted_server: LiveServer, depth: int
    ) -> None:
        answer = ask(scripted_server, "p", temperature=0, max_tokens=5, stop=["d"], draft_depth=depth)
        (choice,) = answer["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("abc", "stop")
        assert choice["token_ids"] == [*b"abcd"], "nothing after the token that held the stop string"
        assert answer["usage"]["completion_tokens"] == 4

    def test_b5_nothing_follows_eos_unless_it_is_ignored(self, scripted_server: LiveServer, depth: int) -> None:
        ended = ask(scripted_server, "q", temperature=0, max_tokens=9, draft_depth=depth)
        ignored = ask(scripted_server, "q", temperature=0, max_tokens=9, ignore_eos=True, draft_depth=depth)
        assert essence(ended) == [("abc", [97, 98, 99, EOS], None, "stop")]
        assert ignored["choices"][0]["token_ids"] == [97, 98, 99, *[EOS] * 6]
        assert ignored["choices"][0]["finish_reason"] == "length"

    def test_b7_min_tokens_counts_tokens_and_not_steps(self, scripted_server: LiveServer, depth: int) -> None:
        """The model wants to end at once, and the end is banned for ten tokens."""
        answer = ask(scripted_server, "s", temperature=0, max_tokens=60, min_tokens=10, draft_depth=depth)
        (choice,) = answer["choices"]
        assert choice["token_ids"] == [*[0] * 10, EOS]
        assert choice["finish_reason"] == "stop"

    def test_b12_exactly_max_tokens(self, scripted_server: LiveServer, depth: int) -> None:
        answer = ask(scripted_server, "x", temperature=0, max_tokens=64, ignore_eos=True, draft_depth=depth)
        assert (answer["usage"]["completion_tokens"], len(answer["choices"][0]["token_ids"])) == (64, 64)


@pytest.mark.parametrize("p_right", [RIGHT, WRONG])
def test_b6_each_row_counts_its_own_min_tokens(tmp_path: Path, p_right: float) -> None:
    """Neighbours of other counts, with four drafts, one and none: the stop string ends each in its own place."""
    gate = Gate()
    runner = FakeDraftingRunner(p_right, script=scripted, fault=gate)
    body = {"prompt": "r", "temperature": 0, "max_tokens": 12, "stop": ["c"]}
    wishes = [{"min_tokens": 8}, {"min_tokens": 8, "draft_depth": 0}, {"min_tokens": 4, "draft_depth": 1}, {}]
    with live_server(tmp_path, runner, "mtp_batch", draft_depth=4) as server:
        answers = ask_together(server, gate, [{**body, **wish} for wish in wishes])
        widths = server.status()["width_histogram"]
    texts = [answer["choices"][0]["text"] for answer in answers]
    assert texts == ["abcdabcdab", "abcdabcdab", "abcdab", "ab"]
    assert {answer["choices"][0]["finish_reason"] for answer in answers} == {"stop"}
    assert {"3", "4"} & widths.keys(), "they were there together"


def test_b42_short_requests_join_a_long_answer_within_a_few_steps(tmp_path: Path) -> None:
    all_are_here = Gate()

    def fault(plan: StepPlan) -> None:
        if len(runner.plans) == 20:
            all_are_here(plan)

    runner = FakeDraftingRunner(OFTEN, num_blocks=2048, max_position=4000, fault=fault)
    with live_server(tmp_path, runner, "mtp_batch", draft_depth=4) as server, ThreadPoolExecutor(9) as pool:
        long = pool.submit(ask, server, "long", temperature=0, max_tokens=300, ignore_eos=True)
        assert all_are_here.reached.wait(PATIENCE_S)
        short = [pool.submit(ask, server, f"s{k}", temperature=0, max_tokens=4) for k in range(8)]
        assert eventually(lambda: server.service.streams.num_live == 9)
        all_are_here.open()
        answers = [future.result() for future in short]
        long.result()
    steps = [[row.seq_id for row in plan.rows if row.num_logits] for plan in runner.plans[20:]]
    assert steps[-10:] == [[0]] * 10, "the short ones were gone long before the long one's end"
    waits = [next(step for step, ids in enumerate(steps, start=1) if seq_id in ids) for seq_id in range(1, 9)]
    assert max(waits) <= 5
    assert {answer["usage"]["completion_tokens"] for answer in answers} <= {1, 2, 3, 4}


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
        for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
            ours = values[f"mtplx_{name.removeprefix('num_')}_total"]
            vllms = values[f'vllm:spec_decode_{name}_total{{model_name="{MODEL}"}}']
            assert float(ours) == float(vllms) == drafts[name]
        for position, accepted in enumerate(drafts["accepted_by_position"]):
            name = f'num_accepted_tokens_per_pos_total{{model_name="{MODEL}",position="{position}"}}'
            assert float(values[f"vllm:spec_decode_{name}"]) == accepted
        assert float(values['mtplx_draft_depths_total{depth="3"}']) == drafts["depth_histogram"]["3"]

    def test_auto_shows_its_costs_and_its_reason(self, tmp_path: Path) -> None:
        with live_server(tmp_path, FakeDraftingRunner(0.0), "mtp_batch", draft_depth="auto") as server:
            ask(server, "hello", temperature=0, max_tokens=300, ignore_eos=True)
            drafts = server.status()["drafts"]
        assert set(drafts["costs_ms"]["step"]) == {"1", "2", "4", "8", "16", "32", "64", "128"}
        assert "no request had room" in drafts["why_none"], "the last token of an answer has nothing to draft"
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
