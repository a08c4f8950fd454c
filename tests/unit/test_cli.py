"""The command `mtplx`: its exit codes and one-sentence errors, chat and status against a server, and a quick start."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import mtplx
from mtplx.client import OpenAIClient
from mtplx.commands.chat import Conversation
from mtplx.commands.public import COMMANDS, build_parser, main
from mtplx.errors import MtplxError
from tests.unit.fake_api import STATUS, Answer, FakeApi, Page, fake_api

ROOT = Path(__file__).parents[2]


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with fake_api() as api:
        yield api


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("MTPLX_")]:
        monkeypatch.delenv(name)


def pipe(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def contents(body: Any) -> list[str]:
    return [message["content"] for message in body["messages"]]


# The package and the parser


def test_package_exports_what_it_says() -> None:
    from mtplx.inference import Engine

    assert mtplx.__all__ == ["Engine", "Grammar", "SamplingParams", "__version__"]
    assert mtplx.Engine is Engine
    with pytest.raises(AttributeError, match="no attribute 'Motor'"):
        mtplx.Motor  # noqa: B018


def test_version_is_the_one_of_the_project_file(capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert mtplx.__version__ == project["version"]
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"mtplx {mtplx.__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["status"], ["chat", "--help"], ["serve", "--help"]])
def test_light_commands_import_nothing_heavy(arguments: list[str], api: FakeApi) -> None:
    script = (
        "import sys, mtplx\n"
        "from mtplx.commands.public import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: sys.stderr.write(' '.join(sys.modules))\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "MTPLX_BASE_URL": api.url},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert completed.returncode == 0, completed.stderr
    modules = completed.stderr.split()
    assert "mtplx.commands.public" in modules
    assert {"torch", "transformers", "fastapi", "gguf"} & set(modules) == set()


def test_the_variable_may_name_a_bare_host_as_the_flag_may(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert api.url.endswith("/v1")
    monkeypatch.setenv("MTPLX_BASE_URL", api.url.removesuffix("/v1"))
    assert main(["status"]) == 0
    monkeypatch.setenv("MTPLX_BASE_URL", "nonsense")
    assert main(["status"]) != 0
    assert "MTPLX_BASE_URL nonsense is no address" in capsys.readouterr().err


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    assert [name for name in COMMANDS if name not in printed] == []


def test_summaries_are_the_ones_the_commands_give_themselves() -> None:
    def summaries(commands: list[str]) -> dict[str, str]:
        parser = build_parser(commands)
        subparsers = next(action for action in parser._actions if action.dest == "command")
        return {action.dest: action.help for action in subparsers._choices_actions}  # type: ignore[attr-defined]

    assert summaries(list(COMMANDS)) == summaries([])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "COMMAND"),
        (["sing"], "sing"),
        (["serve", "--sing", "loud"], "unknown flag --sing"),
        (["serve", "extra"], "'extra' is one argument too many"),
        (["serve", "--port", "http"], "--port: input should be a valid integer"),
        (["serve", "--scheduler-mode", "ar-batch"], "--scheduler-mode"),
        (["chat", "--temperature", "warm"], "--temperature"),
        (["status", "--url", "localhost:8000"], "--url localhost:8000 is no address"),
        (["status", "--url", "http://[::1"], "--url http://[::1 is no address"),
    ],
)
def test_wrong_arguments_are_one_sentence_and_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("mtplx: ")
    assert words in captured.err
    assert captured.err.count("\n") == 1


# Failures of a server, in words


@pytest.mark.parametrize("command", ["chat", "status"])
def test_no_server_is_one_sentence_and_code_1(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, "hello\n")
    with fake_api() as gone:
        pass  # its port was free a moment ago, and nobody listens on it now
    assert main([command, "--url", gone.url]) == 1
    assert capsys.readouterr().err == f"mtplx: no connection to a server at {gone.url}/; start one with: mtplx serve\n"


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (Page({"error": {"message": "no key"}}, 401), "wants a key: give one with --api-key or MTPLX_API_KEY"),
        (Page({"error": {"message": "the engine has died"}}, 503), "answered 503: the engine has died"),
        (Page("<html>", 502, "text/html"), "answered 502"),
    ],
)
def test_refusals_of_a_server_are_one_sentence_and_code_1(
    page: Page, words: str, api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    api.pages["/v1/status"] = page
    assert main(["status", "--url", api.url]) == 1
    captured = capsys.readouterr().err
    assert words in captured
    assert captured.count("\n") == 1


# mtplx status


def test_status_is_a_table_of_all_fields(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.pages["/v1/status"] = Page({**STATUS, "last_step_s": None, "cohorts": [], "markup": "[red]x"})
    assert main(["status", "--url", api.url.removesuffix("/v1")]) == 0
    lines = {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    assert lines == {
        "scheduler mode ar_batch",
        "exact yes",
        "uptime 12.3 s",
        "width histogram 1: 20, 4: 3",
        "last step -",
        "cohorts -",
        "markup [red]x",
    }


def test_status_shows_fields_inside_others_one_a_line(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    costs = {"source": "cached", "step": {"1": 2.5, "2": 3.0}}
    api.pages["/v1/status"] = Page(
        {"drafts": {"num_drafts": 3, "last_depths": [1, 0], "costs_ms": costs}, "model": "m"}
    )
    assert main(["status", "--url", api.url]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert [(len(line) - len(line.lstrip()), " ".join(line.split())) for line in lines] == [
        (1, "drafts"),
        (3, "num drafts 3"),
        (3, "last depths 1, 0"),
        (3, "costs ms"),
        (5, "source cached"),
        (5, "step 1: 2.5, 2: 3"),
        (1, "model m"),
    ]


def test_status_as_json_is_the_page(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--url", api.url, "--json", "--api-key", "k"]) == 0
    assert json.loads(capsys.readouterr().out) == STATUS
    assert api.asked[-1].authorization == "Bearer k"


# mtplx chat, with a pipe


def test_piped_lines_are_turns_of_one_conversation(
    api: FakeApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    api.answers += [Answer(("One", " fish")), Answer(("Two ", "fish"))]
    pipe(monkeypatch, "first\n\n  second  \n/exit\nthird\n")
    assert main(["chat", "--url", api.url, "--system", "Be brief.", "--seed", "7", "--temperature", "0"]) == 0
    assert capsys.readouterr().out == "One fish\nTwo fish\n"
    first, second = (asked.body for asked in api.asked if asked.body)
    assert contents(first) == ["Be brief.", "first"]
    assert contents(second) == ["Be brief.", "first", "One fish", "second"]
    assert (first["model"], first["seed"], first["temperature"]) == ("tiny", 7, 0)
    assert "max_tokens" not in first


def test_reset_forgets_all_but_the_system_message(
    api: FakeApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    api.answers += [Answer(("a",)), Answer(("b",))]
    pipe(monkeypatch, "first\n/reset\nsecond\n")
    assert main(["chat", "--url", api.url, "--system", "Be brief.", "--model", "other", "--max-tokens", "5"]) == 0
    assert contents(api.asked[-1].body) == ["Be brief.", "second"]
    assert (api.asked[-1].body["model"], api.asked[-1].body["max_tokens"]) == ("other", 5)
    assert all(asked.path != "/v1/models" for asked in api.asked)


@pytest.mark.parametrize(
    ("end", "words"), [("error", "broke off: the model fell over"), ("cut", "no connection to a server")]
)
def test_answer_that_breaks_off_ends_a_piped_chat_with_code_1(
    end: Any, words: str, api: FakeApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    api.answers.append(Answer(("half",), end))
    pipe(monkeypatch, "first\nsecond\n")
    assert main(["chat", "--url", api.url]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("half")
    assert words in captured.err


def test_broken_turn_leaves_no_trace_and_a_stopped_one_stays(api: FakeApi) -> None:
    api.answers += [Answer(("half",), "error"), Answer(("kept", " lost"))]
    with OpenAIClient(base_url=api.url, max_retries=0) as client:
        conversation = Conversation(client, "tiny")
        with pytest.raises(MtplxError):
            list(conversation.ask("first"))
        assert conversation.messages == []
        answer = conversation.ask("second")
        assert next(answer) == "kept"
        answer.close()
        assert [message["content"] for message in conversation.messages] == ["second", "kept"]


# mtplx chat, at a terminal


class Terminal:
    """The far end of a pseudo-terminal: types, and waits for what is shown."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._seen = ""

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def wait_for(self, text: str) -> str:
        """What was shown up to and with `text`."""
        assert self._shows(text, 60), f"waited for {text!r}, saw {self._seen!r}"
        before, _, self._seen = self._seen.partition(text)
        return before + text

    def interrupt_until(self, text: str) -> None:
        """Types Ctrl-C, again when nothing came of it: Python misses one that comes just before it begins to wait."""
        for _ in range(10):
            self.type("\x03")
            if self._shows(text, 3):
                break
        self.wait_for(text)

    def _shows(self, text: str, patience_s: float) -> bool:
        while text not in self._seen:
            ready, _, _ = select.select([self._descriptor], [], [], patience_s)
            if not ready:
                return False
            self._seen += os.read(self._descriptor, 4096).decode()
        return True


# Makes the terminal the new session's own, so that Ctrl-C typed there is a signal, then is `mtplx`.
TERMINAL_SCRIPT = """
import fcntl, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite started in the background has it ignored,
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # others start it with the signal blocked
from mtplx.commands.public import main
sys.exit(main(sys.argv[1:]))
"""


@contextmanager
def chat_at_a_terminal(url: str) -> Iterator[tuple[Terminal, subprocess.Popen[bytes]]]:
    near, far = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", TERMINAL_SCRIPT, "chat", "--url", url],
        stdin=far,
        stdout=far,
        stderr=far,
        start_new_session=True,
        env={**os.environ, "TERM": "dumb"},
    )
    os.close(far)
    try:
        yield Terminal(near), process
    finally:
        process.kill()
        process.wait()
        os.close(near)


def test_terminal_chat_stops_an_answer_keeps_the_talk_and_leaves(api: FakeApi) -> None:
    api.answers += [Answer(("Once", " upon"), "hold"), Answer(("esc\x1b[2J",)), Answer(("oh",), "error")]
    with chat_at_a_terminal(api.url) as (terminal, process):
        terminal.wait_for("> ")
        terminal.type("tell\n")
        terminal.wait_for("Once upon")
        terminal.interrupt_until("(stopped)")
        assert api.client_left.wait(60), "the server went on with an answer that nobody reads"
        terminal.wait_for("> ")
        terminal.type("more\n")
        assert "\x1b" not in terminal.wait_for("[2J")
        assert contents(api.asked[-1].body) == ["tell", "Once upon", "more"]
        terminal.wait_for("> ")
        terminal.type("again\n")
        terminal.wait_for("the model fell over")
        terminal.wait_for("> ")
        terminal.interrupt_until("> ")
        terminal.type("\x04")
        assert process.wait(60) == 0
