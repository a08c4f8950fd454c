"""Overload: 64 clients at once on two places and a queue of four. Who is served, how soon the others hear that they
aren't, how soon the status pages answer meanwhile, and what memory returns to.

Run: python -m benchmarks.overload
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.report import Row, criterion, median_and_spread, publish
from benchmarks.start_up import resident_bytes, running_server, served_model
from mtplx.batching.state import SchedulerMode
from mtplx.server.modes import WIDTH_ONE

CLIENTS, WIDTH, QUEUE = 64, 2, 4
PAGES = ("/health", "/metrics", "/v1/models", "/v1/status")
MOST_REFUSAL_MS, MOST_PAGE_MS = 50.0, 100.0
MOST_GROWTH_MB = 8.0  # of a wave over the one before: what an allocator keeps isn't lost


@dataclass(slots=True)
class Wave:
    """What one wave of clients met; times in milliseconds, from a request's first byte to its answer's last."""

    codes: Counter[int] = field(default_factory=Counter)
    num_without_retry_after: int = 0
    refusals_ms: list[float] = field(default_factory=list)
    pages_ms: list[float] = field(default_factory=list)
    num_pages_failed: int = 0
    resident_mb: float = 0.0

    def row(self, number: int) -> Row:
        refusal_ms, refusal_spread = median_and_spread(self.refusals_ms)
        page_ms, page_spread = median_and_spread(self.pages_ms)
        return {
            "wave": number,
            "served": self.codes[200],
            "503": self.codes[503],
            "other": sum(self.codes.values()) - self.codes[200] - self.codes[503],
            "without retry-after": self.num_without_retry_after,
            "ms to a 503": refusal_ms,
            "ms to a 503 spread": refusal_spread,
            "ms to a page": page_ms,
            "ms to a page spread": page_spread,
            "pages failed": self.num_pages_failed,
            "resident MB after": self.resident_mb,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--waves", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--mode", type=SchedulerMode, choices=list(SchedulerMode), default=SchedulerMode.AR_BATCH)
    parser.add_argument("--output", type=Path, help="where the JSON goes; default: the results folder")
    options = parser.parse_args()
    flags = ["--model", options.model, "--scheduler-mode", options.mode]
    if options.mode not in WIDTH_ONE:
        flags += ["--decode-batch-max", str(WIDTH)]
    flags += ["--max-queue", str(QUEUE), "--kv-cache-tokens", "4096", "--max-model-len", "2048"]
    with running_server(*flags) as server:
        body = {"model": served_model(server), "prompt": "The sea", "max_tokens": options.max_tokens, "temperature": 1}
        waves = [
            asyncio.run(send_wave(server.url, body, lambda: resident_bytes(server.pid))) for _ in range(options.waves)
        ]
    publish(
        "overload",
        [wave.row(number) for number, wave in enumerate(waves, start=1)],
        model=options.model,
        output=options.output,
        tables={"criteria": criteria(waves)},
    )


def criteria(waves: Sequence[Wave]) -> list[Row]:
    """Every single time counts, not the median: a limit is a promise."""
    growth = [later.resident_mb - earlier.resident_mb for earlier, later in itertools.pairwise(waves[1:])]
    return [
        criterion("served of a wave", [wave.codes[200] for wave in waves], least=WIDTH + QUEUE),
        criterion("ms to a 503, the slowest", [max(wave.refusals_ms) for wave in waves], most=MOST_REFUSAL_MS),
        criterion("ms to a status page, the slowest", [max(wave.pages_ms) for wave in waves], most=MOST_PAGE_MS),
        *([criterion("MB that a wave adds", growth, most=MOST_GROWTH_MB)] if growth else []),
    ]


async def send_wave(url: str, body: dict[str, object], read_resident_bytes: Callable[[], int]) -> Wave:
    """All clients at once, each on a connection of its own that was open before; status pages are asked throughout."""
    wave = Wave()
    watcher, *clients = [await Client.connect(url) for _ in range(1 + CLIENTS)]
    for client in clients:
        await client.get("/health")
    watching = asyncio.create_task(_watch(watcher, wave))
    await asyncio.gather(*(_ask(client, json.dumps(body).encode(), wave) for client in clients))
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    for client in (watcher, *clients):
        client.close()
    wave.resident_mb = read_resident_bytes() / 1e6
    return wave


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    headers: dict[str, str]
    body: bytes
    ms: float


class Client:
    """One connection that asks and reads, and no more: on the machine that serves, each client's own cost is the
    others' wait, and 64 of a whole HTTP library need a tenth of a second of it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, url: str) -> Client:
        parts = urlsplit(url)
        return cls(*await asyncio.open_connection(parts.hostname, parts.port))

    async def get(self, path: str) -> Answer:
        return await self._ask(f"GET {path} HTTP/1.1\r\nhost: here\r\n\r\n".encode())

    async def post(self, path: str, body: bytes) -> Answer:
        head = f"POST {path} HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n"
        return await self._ask(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)

    def close(self) -> None:
        self._writer.close()

    async def _ask(self, request: bytes) -> Answer:
        begin_s = time.perf_counter()
        self._writer.write(request)
        first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await self._reader.readexactly(int(headers["content-length"]))
        return Answer(int(first.split()[1]), headers, body, 1e3 * (time.perf_counter() - begin_s))


async def _ask(client: Client, body: bytes, wave: Wave) -> None:
    answer = await client.post("/v1/completions", body)
    wave.codes[answer.code] += 1
    if answer.code == 503:
        wave.refusals_ms.append(answer.ms)
        wave.num_without_retry_after += "retry-after" not in answer.headers


async def _watch(client: Client, wave: Wave) -> None:
    """One page after the other, until cancelled."""
    while True:
        for page in PAGES:
            answer = await client.get(page)
            wave.pages_ms.append(answer.ms)
            wave.num_pages_failed += answer.code != 200
        await asyncio.sleep(0.01)


if __name__ == "__main__":
    main()
