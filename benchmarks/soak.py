"""Does anything ever change an answer, or stay behind? A long mixed load over HTTP, against every mode, resumable.

Chats and completions with every field that changes an answer, with shared beginnings, grammars and several choices,
streamed and not; some clients leave. The oracle is a serial server without drafts, asked one by one, never streamed.
Each other server is asked all of them twice, many at a time, with a small cache; afterwards nothing may be in use.

Run: python -m benchmarks.soak --output benchmarks/results/<date>-soak.json
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.report import Row, publish
from benchmarks.start_up import running_server, served_model
from mtplx.batching.state import SchedulerMode
from mtplx.server.modes import WIDTH_ONE

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
STEMS = (
    "You answer in one short sentence, and when you don't know, you say so. ",
    "The following is a list of things that people say about the sea, the weather and the harvest:\n",
    "def total(prices):\n    ",
    "",
)
QUESTIONS = (
    "What is a river?",
    "Name three colours.",
    "Count to ten.",
    "Why is bread baked?",
    "Say hello.",
    "12 + 30 =",
)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "size": {"enum": ["small", "large"]}},
    "required": ["name", "size"],
    "additionalProperties": False,
}
GRAMMARS: tuple[dict[str, Any], ...] = (
    {"json": SCHEMA},
    {"regex": "[a-z]{2,8}( [0-9]+)?"},
    {"choice": ["yes", "no", "perhaps"]},
)
TOOL = {"type": "function", "function": {"name": "keep", "parameters": SCHEMA}}
Choice = dict[str, Any]  # what must not depend on how it was computed, of one choice
SMALL_CACHE, WIDTH, CLIENTS = 2048, 8, 16


@dataclass(frozen=True, slots=True)
class Wish:
    """One request; its client leaves after so many events, if it does."""

    path: str
    body: dict[str, Any]
    leaves_after: int | None


def make_wishes(count: int, seed: int = 6) -> list[Wish]:
    """The same ones for the same seed; every one has a seed of its own, so that it can be asked again."""
    rng = random.Random(seed)
    return [_wish(rng) for _ in range(count)]


def ask(client: httpx.Client, model: str, wish: Wish) -> list[Choice]:
    """The answer's choices; only their beginnings where the client leaves."""
    body = {"model": model, **wish.body}
    if not body["stream"]:
        response = client.post(wish.path, json=body)
        assert response.status_code == 200, (response.text, body)
        return [_essence(choice) for choice in response.json()["choices"]]
    choices: dict[int, Choice] = {index: _essence({}) for index in range(body.get("n", 1))}
    with client.stream("POST", wish.path, json=body) as response:
        assert response.status_code == 200, (response.read(), body)
        for number, data in enumerate(_events(response)):
            if number == wish.leaves_after:
                break
            for piece in data["choices"]:
                _join(choices[piece["index"]], _essence(piece))
    return [choices[index] for index in sorted(choices)]


def ask_whole(client: httpx.Client, model: str, wish: Wish) -> list[Choice]:
    """What everybody must be told: the answer in one piece, of a client that stays."""
    return ask(client, model, Wish(wish.path, {**wish.body, "stream": False}, None))


def differences(wishes: Sequence[Wish], expected: Sequence[list[Choice]], found: Sequence[list[Choice]]) -> list[int]:
    """The numbers of the wishes whose answers aren't what is expected, or no beginning of it where the client left."""
    return [
        number
        for number, (wish, mine, theirs) in enumerate(zip(wishes, found, expected, strict=True))
        if (not _all_begin(mine, theirs) if wish.leaves_after is not None else mine != theirs)
    ]


def ask_all(
    wishes: Sequence[Wish],
    ask_one: Callable[[Wish], list[Choice]],
    *,
    num_clients: int,
    seed: int,
    pause_s: float = 0.0,
) -> list[list[Choice]]:
    """All answers, in the order of `wishes`; asked in a random one, each after a pause of `pause_s` on average."""
    rng = random.Random(seed)
    order = rng.sample(range(len(wishes)), len(wishes))
    pauses_s = [rng.expovariate(1 / pause_s) if pause_s else 0.0 for _ in wishes]

    def ask_after_pause(number: int) -> list[Choice]:
        time.sleep(pauses_s[number])
        return ask_one(wishes[number])

    with ThreadPoolExecutor(num_clients) as pool:
        answers = dict(zip(order, pool.map(ask_after_pause, order), strict=True))
    return [answers[number] for number in range(len(wishes))]


def in_use(status: dict[str, Any]) -> dict[str, int]:
    """What a server that nobody asks anything must have none of."""
    return {name: status[name] for name in ("num_running", "num_waiting", "cache_blocks_used")}


def _wish(rng: random.Random) -> Wish:
    is_chat = rng.random() < 0.5
    stem, question = rng.choice(STEMS), rng.choice(QUESTIONS) + "!" * rng.choice([0, 0, 1, 9])
    prompt: dict[str, Any] = {"prompt": stem + question}
    if is_chat:
        system = [{"role": "system", "content": stem}] if stem else []
        prompt = {"messages": [*system, {"role": "user", "content": question}]}
    body = {**prompt, **_fields(rng, is_chat=is_chat)}
    leaves_after = rng.choice([0, 1, 2, 5]) if body["stream"] and rng.random() < 0.3 else None
    return Wish(CHAT if is_chat else TEXT, body, leaves_after)


def _fields(rng: random.Random, *, is_chat: bool) -> dict[str, Any]:
    body: dict[str, Any] = {
        "max_tokens": rng.choice([1, 3, 8, 16, 32]),
        "seed": rng.randint(0, 2**53),
        "temperature": rng.choice([0, 0.7, 1.0, 1.3]),
        "stream": rng.random() < 0.6,
        "return_token_ids": True,
    }
    maybe: list[tuple[float, dict[str, Any]]] = [
        (0.2, {"top_p": round(rng.uniform(0.3, 1), 2)}),
        (0.1, {"top_k": rng.randint(1, 40)}),
        (0.1, {"min_p": 0.05}),
        (0.15, {"presence_penalty": round(rng.uniform(-2, 2), 2)}),
        (0.15, {"frequency_penalty": round(rng.uniform(-2, 2), 2)}),
        (0.15, {"repetition_penalty": 1.2}),
        (0.1, {"logit_bias": {str(rng.randint(33, 120)): 3.5, str(rng.randint(33, 120)): -100}}),
        (0.2, {"stop": rng.sample(["e", " the", "\n", ".", "ab", "10"], 2)}),
        (0.2, {"n": rng.choice([2, 3])}),
        (0.25, {"logprobs": True, "top_logprobs": rng.choice([0, 2, 5])} if is_chat else {"logprobs": 3}),
        (0.2, {"draft_depth": rng.randint(0, 8)}),
        (0.2, {"cache_salt": "another client"}),
        (0.25, _ending(rng)),
    ]
    for share, fields in maybe:
        if rng.random() < share:
            body |= fields
    if is_chat and not {"structured_outputs", "ignore_eos"} & body.keys() and rng.random() < 0.2:
        body |= {"tools": [TOOL], "tool_choice": rng.choice(["auto", "required"])}
    return body


def _ending(rng: random.Random) -> dict[str, Any]:
    """What says where an answer may end: these contradict each other."""
    return rng.choice(
        [{"min_tokens": 1}, {"ignore_eos": True}, *({"structured_outputs": grammar} for grammar in GRAMMARS)]
    )


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The chunks of a stream, which must end well."""
    for line in response.iter_lines():
        if line == "data: [DONE]":
            return
        if line.startswith("data: "):
            chunk: dict[str, Any] = json.loads(line.removeprefix("data: "))
            assert "error" not in chunk, chunk
            yield chunk
    raise AssertionError("a stream ended without [DONE]")


def _essence(choice: dict[str, Any]) -> Choice:
    """Of a whole choice or of a streamed piece, in one shape."""
    said = choice.get("message") or choice.get("delta") or {}
    logprobs = choice.get("logprobs") or {}
    entries = logprobs.get("content") or logprobs.get("token_logprobs") or []
    return {
        "text": choice.get("text") or said.get("content") or "",
        "token_ids": choice.get("token_ids") or [],
        "logprobs": list(entries),
        "calls": _calls(said.get("tool_calls") or ()),
        "finish_reason": choice.get("finish_reason"),
    }


def _calls(pieces: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Name and arguments of each call; of one that a stream has only begun to tell, what it has told."""
    calls: list[list[str]] = []
    for number, piece in enumerate(pieces):
        index, function = piece.get("index", number), piece["function"]
        calls += [["", ""] for _ in range(index + 1 - len(calls))]
        calls[index] = [
            calls[index][0] + (function.get("name") or ""),
            calls[index][1] + (function.get("arguments") or ""),
        ]
    return calls


def _join(whole: Choice, piece: Choice) -> None:
    whole["text"] += piece["text"]
    whole["token_ids"] += piece["token_ids"]
    whole["logprobs"] += piece["logprobs"]
    whole["calls"] += [["", ""] for _ in piece["calls"][len(whole["calls"]) :]]
    for mine, more in zip(whole["calls"], piece["calls"], strict=False):
        mine[:] = [told + new for told, new in zip(mine, more, strict=True)]
    whole["finish_reason"] = piece["finish_reason"] or whole["finish_reason"]


def _all_begin(beginnings: Sequence[Choice], wholes: Sequence[Choice]) -> bool:
    return all(
        beginning[part] == whole[part][: len(beginning[part])]
        for beginning, whole in zip(beginnings, wholes, strict=True)
        for part in ("text", "token_ids", "logprobs")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument(
        "--draft-head", default="none", help="a head file; without one the modes that need none are run"
    )
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--pause-s", type=float, default=0.1, help="a client's mean pause before a request")
    parser.add_argument("--output", type=Path, required=True, help="goes on with what this file has")
    options = parser.parse_args()
    wishes = make_wishes(options.requests)
    # What was asked is kept with the answers: those of another load are no use.
    setup = {"model": options.model, "draft_head": options.draft_head, "requests": options.requests}
    kept = json.loads(options.output.read_text()) if options.output.exists() else {}
    if kept.get("setup") != setup:
        kept = {"setup": setup, "oracle": _oracle(options, wishes), "rows": []}
    rows: list[Row] = kept["rows"]
    for mode in _modes(options.draft_head):
        if not any(row["mode"] == mode for row in rows):
            rows += _soak(options, mode, wishes, kept["oracle"])
            publish("soak", rows, model=options.model, output=options.output, details=kept)


def _modes(draft_head: str) -> Iterator[SchedulerMode]:
    needs_head = (SchedulerMode.MTP_BATCH, SchedulerMode.HYPER)
    yield from (mode for mode in SchedulerMode if draft_head != "none" or mode not in needs_head)


def _oracle(options: argparse.Namespace, wishes: Sequence[Wish]) -> list[list[Choice]]:
    flags = ("--model", options.model, "--scheduler-mode", "serial", "--draft-depth", "0", "--prefix-cache", "off")
    with running_server(*flags) as server, httpx.Client(base_url=server.url, timeout=600) as client:
        model = served_model(server)
        return [ask_whole(client, model, wish) for wish in wishes]


def _soak(
    options: argparse.Namespace, mode: SchedulerMode, wishes: Sequence[Wish], oracle: Sequence[list[Choice]]
) -> Iterator[Row]:
    """A row for each round, all on one server."""
    flags = ["--model", options.model, "--scheduler-mode", mode, "--draft-head", options.draft_head]
    flags += ["--kv-cache-tokens", str(SMALL_CACHE), "--max-model-len", str(SMALL_CACHE // 2)]
    if mode not in WIDTH_ONE:
        flags += ["--decode-batch-max", str(WIDTH)]
    if mode is SchedulerMode.MTP_COHORT_EXPERIMENTAL:
        flags.append("--experimental-mtp-cohorts")
    with running_server(*flags) as server, httpx.Client(base_url=server.url, timeout=600) as client:
        model = served_model(server)
        for number in range(options.rounds):
            found = ask_all(
                wishes,
                lambda wish: ask(client, model, wish),
                num_clients=CLIENTS,
                seed=number,
                pause_s=options.pause_s,
            )
            different = differences(wishes, oracle, found)
            time.sleep(1.0)  # those who left last
            status = client.get("/v1/status").json()
            yield {
                "mode": mode,
                "round": number + 1,
                "answers": len(wishes),
                "left": sum(wish.leaves_after is not None for wish in wishes),
                "different": len(different),
                "first": str(different[:5]),
                "preemptions": status["num_preemptions"],
                **in_use(status),
            }


if __name__ == "__main__":
    main()
