"""`mtplx chat`: a conversation with a running server, streamed; lines from a pipe are turns too."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Generator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import openai
from rich.console import Console

from mtplx.commands.connection import add_connection_arguments, connect, plain_errors
from mtplx.errors import MtplxError

if TYPE_CHECKING:
    from mtplx.client import OpenAIClient
    from mtplx.commands.public import Subparsers

HELP_LINE = "/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer"


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "chat",
        help="chat with a running server",
        description="Chat with a running server. With piped input every line is a turn, and only answers are printed.",
        epilog=HELP_LINE,
    )
    add_connection_arguments(parser)
    parser.add_argument("--model", help="the model's name (default: the one that the server serves)")
    parser.add_argument("--system", metavar="TEXT", help="a system message to begin with")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy (default: the server's)")
    parser.add_argument("--seed", type=int, metavar="N", help="the same seed and turns give the same answers")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="most tokens of one answer (default: the server's)")


def run(namespace: argparse.Namespace) -> int:
    """Talks until the input ends."""
    with connect(namespace) as client:
        with plain_errors(client):
            model = namespace.model or _served_model(client)
        options = {name: getattr(namespace, name) for name in ("temperature", "seed", "max_tokens")}
        given = {name: value for name, value in options.items() if value is not None}
        conversation = Conversation(client, model, namespace.system, given)
        if sys.stdin.isatty():
            _talk(conversation, Console(highlight=False))
        else:
            _answer_lines(conversation, Console(highlight=False))
    return 0


@dataclass(slots=True)
class Conversation:
    """A client with the turns so far. A turn that got no answer, or a broken one, leaves no trace in `messages`."""

    client: OpenAIClient
    model: str
    system: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forgets all turns but the system message."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def ask(self, text: str) -> Generator[str]:
        """The answer piece by piece. Closing the iterator stops the server too, and what was said so far is kept.

        Raises:
            MtplxError: no answer, or it broke off.
        """
        question = {"role": "user", "content": text}
        pieces: list[str] = []
        try:
            with plain_errors(self.client), closing(self._stream([*self.messages, question])) as stream:
                for piece in stream:
                    pieces.append(piece)
                    yield piece
        except MtplxError:
            pieces.clear()
            raise
        finally:
            if pieces:
                self.messages += [question, {"role": "assistant", "content": "".join(pieces)}]

    def _stream(self, messages: list[dict[str, str]]) -> Generator[str]:
        create: Any = self.client.chat.completions.create  # its overloads want literal dicts
        stream: openai.Stream[Any] = create(model=self.model, messages=messages, stream=True, **self.options)
        with stream:
            for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    yield chunk.choices[0].delta.content


def _served_model(client: OpenAIClient) -> str:
    for model in client.models.list():
        return model.id
    raise MtplxError(f"{client.base_url} serves no model")


def _talk(conversation: Conversation, console: Console) -> None:
    """The loop at a terminal: an error ends a turn, not the conversation."""
    console.print(f"{conversation.model} at {conversation.client.base_url}\n{HELP_LINE}", style="dim", markup=False)
    with suppress(ImportError):  # where there is none, input() does without line editing and history
        import readline  # noqa: F401
    while (line := _read_line()) is not None:
        if line == "/reset":
            conversation.reset()
        elif line:
            try:
                _print_answer(conversation, line, console)
            except MtplxError as error:
                console.print(f"\n{error}", style="red", markup=False)


def _read_line() -> str | None:
    """One stripped line, empty after Ctrl-C; None when the user leaves."""
    try:
        line = input("> ").strip()
    except KeyboardInterrupt:
        print()
        return ""
    except EOFError:
        print()
        return None
    return None if line == "/exit" else line


def _print_answer(conversation: Conversation, text: str, console: Console) -> None:
    try:
        with closing(conversation.ask(text)) as answer:
            for piece in answer:
                console.out(_harmless(piece), end="")
        console.out()
    except KeyboardInterrupt:
        console.print("\n(stopped)", style="dim")


def _answer_lines(conversation: Conversation, console: Console) -> None:
    """The loop at a pipe: the first error ends it."""
    for line in map(str.strip, sys.stdin):
        if line == "/exit":
            return
        if line == "/reset":
            conversation.reset()
        elif line:
            for piece in conversation.ask(line):
                console.out(piece, end="")
            console.out()


def _harmless(text: str) -> str:
    """Control characters replaced, all but newline and tab: what a model writes must not steer the user's terminal."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "\N{REPLACEMENT CHARACTER}", text)
