"""`mtplx profile`: sends a few requests to a hyper server, one after another, and shows where its time went."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from mtplx.commands.connection import connect, plain_errors
from mtplx.commands.output import table_console
from mtplx.errors import ConfigError, MtplxError

if TYPE_CHECKING:
    from mtplx.client import OpenAIClient
    from mtplx.commands.public import Subparsers

PROMPTS = (
    "What is the difference between weather and climate?",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Give me five ideas for a rainy afternoon with two small children.",
    "Translate into French: the train to Lyon leaves at seven from platform four.",
    "Tell a short story about a lighthouse keeper who collects clocks.",
    "Explain to a beginner how a bicycle stays upright.",
)
WARM_UP = "Say hello."  # none of the others: what is computed for one prompt may be there for the next
STOP_TIMEOUT_S = 60.0
NAMES = {"sample": "sample and verify", "hand_over": "hand-over"}
BESIDE = ("hand_over", "detokenise")  # run while the next step does


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "profile",
        help="where the time of a step goes, stage by stage",
        description="Send a few requests, one after another, to a server in hyper mode, and show where the time of "
        "its steps went. The first request is for warming up and isn't counted.",
        epilog="Without --url a server is started for it, with the settings of the MTPLX_* variables",
    )
    parser.add_argument("--url", help="the API address of a running server in hyper mode (default: start one)")
    parser.add_argument("--api-key", metavar="KEY", help="the key to send (default: the first of MTPLX_API_KEY)")
    parser.add_argument("--model", help="what the started server serves, as in mtplx serve")
    parser.add_argument("--draft-depth", metavar="N", help="of the started server, as in mtplx serve")
    parser.add_argument(
        "--prompts", type=Path, metavar="FILE", help='one prompt a line, or one object with "messages" (default: six)'
    )
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="most tokens of an answer (128)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0, the default, is greedy")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="also write a trace that Perfetto opens")
    parser.add_argument("--json", action="store_true", help="print the profile as the server gives it")


def run(namespace: argparse.Namespace) -> int:
    """Prints the profile.

    Raises:
        ConfigError: the file of prompts can't be read, or a running server is to have other settings.
        MtplxError: the server can't be started or reached, or isn't in hyper mode; the trace can't be written.
    """
    if namespace.url and (namespace.model or namespace.draft_depth):
        raise ConfigError("--model and --draft-depth are for the server that is started without --url", "--url")
    conversations = read_conversations(namespace.prompts) if namespace.prompts else [_user(text) for text in PROMPTS]
    with _server_url(namespace) as url:
        address = argparse.Namespace(url=url, api_key=namespace.api_key)
        with connect(address) as client, plain_errors(client):
            first_step = _run_requests(client, conversations, namespace)
            page = client.get("/profile", options={"params": {"after_step": first_step}})
            if namespace.trace:
                parameters = {"after_step": first_step, "format": "trace"}
                _write(namespace.trace, client.get("/profile", options={"params": parameters}))
    if namespace.json:
        print(json.dumps(page, indent=2))
    else:
        console = table_console()
        console.print(summary(page), highlight=False)
        console.print(profile_table(page))
    return 0


def read_conversations(path: Path) -> list[list[dict[str, Any]]]:
    """The messages of each request of a file; a line that is no JSON object is a prompt as it stands.

    Raises:
        ConfigError: it can't be read, or holds no prompt.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--prompts {path} can't be read: {error}", "--prompts") from None
    if not lines:
        raise ConfigError(f"--prompts {path} holds no prompt", "--prompts")
    return [_messages(line) for line in lines]


def summary(page: Mapping[str, Any]) -> str:
    """What the steps gave, in a few sentences."""
    per_step = page["tokens_per_step"]
    lines = [f"{page['model']}: {page['num_steps']} steps in {page['steps_ms']:.0f} ms"]
    if per_step is not None:
        lines.append(
            f"{page['num_decode_tokens']} tokens in {page['num_decode_steps']} steps of decoding: "
            f"{per_step:.2f} tokens a step"
        )
    if page["num_draft_tokens"]:
        lines.append(f"{page['num_accepted_tokens']} of {page['num_draft_tokens']} drafts accepted")
    if page["num_dropped"]:
        lines.append(f"the first {page['num_dropped']} steps are no longer kept: send fewer requests")
    return "\n".join(lines)


def profile_table(page: Mapping[str, Any]) -> Table:
    """One line a stage; under the forward one for each number of tokens; then what runs beside the next step."""
    table = Table(box=None, pad_edge=False)
    table.add_column("stage", no_wrap=True)
    for name in ("calls", "median ms", "total ms", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in page["stages"]:
        if row["stage"] in BESIDE:
            continue
        _add(table, NAMES.get(row["stage"], row["stage"]), row)
        if row["stage"] == "forward":
            for part in page["forward_by_tokens"]:
                _add(table, f"  {part['num_tokens']} token{'s' if part['num_tokens'] > 1 else ''}", part)
    for row in page["stages"]:
        if row["stage"] in BESIDE:
            _add(table, f"{NAMES.get(row['stage'], row['stage'])}, beside the next step", row)
    return table


def _add(table: Table, name: str, row: Mapping[str, Any]) -> None:
    numbers = (f"{row['num_calls']}", f"{row['median_ms']:.3f}", f"{row['total_ms']:.1f}", f"{row['share']:.1%}")
    table.add_row(name, *numbers)


def _run_requests(
    client: OpenAIClient, conversations: Sequence[list[dict[str, Any]]], namespace: argparse.Namespace
) -> int:
    """Asks for all answers; returns the number of the last step that isn't theirs."""
    client.get("/profile")  # says at once where it can't be had
    model = client.models.list().data[0].id
    create: Any = client.chat.completions.create  # its overloads want literal dicts
    options = {"max_tokens": namespace.max_tokens, "temperature": namespace.temperature, "seed": 0}
    create(model=model, messages=_user(WARM_UP), **options)
    first_step = int(client.get("/profile")["last_step"])
    console = Console(stderr=True)
    for messages in track(conversations, "asking", console=console, disable=not console.is_terminal, transient=True):
        create(model=model, messages=messages, **options)
    return first_step


@contextmanager
def _server_url(namespace: argparse.Namespace) -> Iterator[str]:
    """The address that was given, or that of a server process which ends with the block."""
    if namespace.url:
        yield namespace.url
        return
    flags = ["--scheduler-mode", "hyper", "--host", "127.0.0.1", "--port", "0", "--log-level", "warning"]
    for flag, value in (("--model", namespace.model), ("--draft-depth", namespace.draft_depth)):
        flags += [flag, value] if value else []
    command = [sys.executable, "-m", "mtplx.server.openai", "serve", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
        try:
            yield _address_of(process)
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _address_of(process: subprocess.Popen[str]) -> str:
    """What a server prints last when it has started; if it can't start it says why on standard error."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("address "):
            return line.removeprefix("address ").strip()
    raise MtplxError("the server could not start")


def _messages(line: str) -> list[dict[str, Any]]:
    try:
        data = json.loads(line)
    except ValueError:
        return _user(line)
    return data["messages"] if isinstance(data, dict) and "messages" in data else _user(line)


def _user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def _write(path: Path, trace: Mapping[str, Any]) -> None:
    try:
        path.write_text(json.dumps(trace), encoding="utf-8")
    except OSError as error:
        raise MtplxError(f"the trace can't be written: {error}") from error
