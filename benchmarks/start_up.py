"""Measures a server's start, from the process to the first streamed token with the model cached, and its memory.

Memory is what is resident, private and mapped, once all blocks of the cache have been used; from it goes what a process
takes that imports the same modules and nothing else. Needs /proc.

Run: python -m benchmarks.start_up
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.long_context import cache_bytes_per_token
from benchmarks.report import Row, criterion, median_and_spread, publish
from mtplx.model.folder import read_spec
from mtplx.model.store import cache_root
from mtplx.model.weights import resolve_model

MOST_START_S, MOST_EXTRA_MB = 5.0, 300.0
WIDTH, TOKENS_EACH = 16, 512  # the load that uses every block of the cache
IMPORTED = re.compile(r"^import time:[\d |]*\| +([\w.]+)$", re.MULTILINE)  # what PYTHONPROFILEIMPORTTIME writes
IMPORT_ALL = """
import contextlib, importlib, json, sys
for name in json.loads(sys.stdin.readline()):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
print("ready", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    pid: int
    address_s: float  # from the process's start until it listened


@dataclass(frozen=True, slots=True)
class Memory:
    """In bytes. `resident` is the server's, `imports` that of the process with its modules alone."""

    resident: int
    imports: int
    weights: int
    cache: int

    @property
    def extra(self) -> int:
        return self.resident - self.imports - self.weights - self.cache


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--output", type=Path, help="where the JSON goes; default: the results folder")
    options = parser.parse_args()
    time_start(options.model)  # fetches, converts and packs where that hasn't been done
    starts = [time_start(options.model) for _ in range(options.starts)]
    memory = measure_memory(options.model)
    publish(
        "start_up",
        [*_start_rows(starts), *_memory_rows(memory)],
        model=options.model,
        output=options.output,
        tables={
            "criteria": [
                criterion("s to the first token", [start[1] for start in starts], most=MOST_START_S),
                criterion("MB over imports, weights and cache", [memory.extra / 1e6], most=MOST_EXTRA_MB),
            ]
        },
    )


def time_start(model: str) -> tuple[float, float]:
    """Seconds from the process's start until it listened, and until the first streamed token."""
    begin_s = time.perf_counter()
    with running_server("--model", model) as server:
        body = {"model": served_model(server), "prompt": "The sea", "max_tokens": 8, "temperature": 0, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["text"]:
                    return server.address_s, time.perf_counter() - begin_s
    raise AssertionError("the stream ended without a token")


def measure_memory(model: str) -> Memory:
    """Starts a server, uses all of its cache, and compares it with a process of the same imports."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "imports"
        flags = ("--model", model, "--kv-cache-tokens", str(WIDTH * TOKENS_EACH), "--decode-batch-max", str(WIDTH))
        with running_server(*flags, stderr=log, env={"PYTHONPROFILEIMPORTTIME": "1"}) as server:
            use_cache(server)
            status = httpx.get(f"{server.url}/v1/status").json()
            resident, weights = resident_bytes(server.pid), mapped_weights_bytes(server.pid)
        names = IMPORTED.findall(log.read_text())
    spec = read_spec(resolve_model(model, with_weights=False).path)
    cache_tokens = status["cache_blocks_total"] * status["cache_block_size"]
    return Memory(
        resident,
        imports_bytes(["mtplx.server.openai", *names]),
        weights,
        cache_tokens * cache_bytes_per_token(spec, status["kv_cache_dtype"]),
    )


def use_cache(server: Server) -> None:
    """Sends as many prompts at once as fill the cache."""
    prompts = [[100 + index] * (TOKENS_EACH - 4) for index in range(WIDTH)]
    body = {"model": served_model(server), "prompt": prompts, "max_tokens": 4, "temperature": 0}
    httpx.post(f"{server.url}/v1/completions", json=body, timeout=600).raise_for_status()


def imports_bytes(names: Sequence[str]) -> int:
    """Resident memory of a process that has imported these modules."""
    with subprocess.Popen(
        [sys.executable, "-c", IMPORT_ALL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(names) + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ready\n", "the imports failed"
        resident = resident_bytes(process.pid)
        process.stdin.close()
    return resident


def resident_bytes(pid: int) -> int:
    """What is resident of a process: private pages and those of mapped files."""
    found = re.search(r"^Rss: +(\d+) kB$", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def mapped_weights_bytes(pid: int) -> int:
    """The size of what a process has mapped of the packed weights in the user's cache."""
    folder = re.escape(str(cache_root() / "native"))
    maps = Path(f"/proc/{pid}/maps").read_text()
    ranges = re.findall(rf"^([0-9a-f]+)-([0-9a-f]+) .* {folder}/.*$", maps, re.MULTILINE)
    return sum(int(end, 16) - int(begin, 16) for begin, end in ranges)


def served_model(server: Server) -> str:
    name: str = httpx.get(f"{server.url}/v1/models").json()["data"][0]["id"]
    return name


@contextmanager
def running_server(
    *flags: str, stderr: Path = Path(os.devnull), env: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """A server on a free port, ready for requests; stopped by SIGTERM at the end."""
    command = [sys.executable, "-m", "mtplx.server.openai", "serve", "--port", "0", *flags]
    begin_s = time.perf_counter()
    with (
        stderr.open("w") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, **(env or {})}
        ) as process,
    ):
        assert process.stdout is not None
        try:
            address = next((line for line in process.stdout if line.startswith("address ")), None)
            assert address is not None, "the server ended at its start"
            # Readiness is the first request's business: the socket is bound, so a client waits in its queue.
            yield Server(address.split()[1], process.pid, time.perf_counter() - begin_s)
        finally:
            process.terminate()


def _start_rows(starts: Sequence[tuple[float, float]]) -> Iterator[Row]:
    for name, samples in zip(("s to its address", "s to the first token"), zip(*starts, strict=True), strict=True):
        median, spread = median_and_spread(samples)
        yield {"measure": name, "median": median, "spread": spread}


def _memory_rows(memory: Memory) -> Iterator[Row]:
    for name in ("resident", "imports", "weights", "cache", "extra"):
        yield {"measure": f"MB {name}", "median": getattr(memory, name) / 1e6, "spread": None}


if __name__ == "__main__":
    main()
