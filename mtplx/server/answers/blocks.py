"""A chat answer as a row of blocks, each a text, some reasoning or a call: what newer APIs make their answers of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from mtplx.server.answers.shapes import ChatDelta, ChatMessage, ChatTokenLogprob


class BlockKind(StrEnum):
    REASONING = "reasoning"
    TEXT = "text"
    CALL = "call"


@dataclass(slots=True)
class Block:
    """One block, growing by pieces; a call's text is its arguments in JSON."""

    kind: BlockKind
    number: int  # in the answer
    call_id: str = ""
    name: str = ""  # of the function that is called
    text: str = ""
    logprobs: list[ChatTokenLogprob] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Opened:
    """A block has begun; it is empty."""

    block: Block


@dataclass(frozen=True, slots=True)
class Grown:
    """A piece, which has been added to its block already."""

    block: Block
    text: str
    logprobs: Sequence[ChatTokenLogprob]


@dataclass(frozen=True, slots=True)
class Closed:
    """A block has ended."""

    block: Block


Change = Opened | Grown | Closed


class BlockReader:
    """Follows the chunks of one choice. At most one block is open, the last one."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._open: Block | None = None

    def push(self, delta: ChatDelta, logprobs: Sequence[ChatTokenLogprob] = ()) -> Iterator[Change]:
        """What a chunk's delta changes; `logprobs` go with its content."""
        if delta.get("reasoning_content"):
            yield from self._grow(BlockKind.REASONING, delta["reasoning_content"], [])
        yield from self.push_text(delta.get("content", ""), logprobs)
        for call in delta.get("tool_calls", ()):
            function = call["function"]
            if "id" in call:
                yield from self._begin(BlockKind.CALL, call["id"], function["name"])
            if function["arguments"]:
                yield from self._grow(BlockKind.CALL, function["arguments"], [])

    def push_text(self, text: str, logprobs: Sequence[ChatTokenLogprob]) -> Iterator[Change]:
        """What a piece of text changes, with the logprobs that go with it; either may be empty."""
        if text or logprobs:
            yield from self._grow(BlockKind.TEXT, text, logprobs)

    def close(self) -> Iterator[Change]:
        """Ends the open block, if there is one."""
        if self._open is not None:
            yield Closed(self._open)
            self._open = None

    def _grow(self, kind: BlockKind, text: str, logprobs: Sequence[ChatTokenLogprob]) -> Iterator[Change]:
        if self._open is None or self._open.kind is not kind:
            yield from self._begin(kind)
        block = self.blocks[-1]
        block.text += text
        block.logprobs += logprobs
        yield Grown(block, text, logprobs)

    def _begin(self, kind: BlockKind, call_id: str = "", name: str = "") -> Iterator[Change]:
        yield from self.close()
        self._open = Block(kind, len(self.blocks), call_id, name)
        self.blocks.append(self._open)
        yield Opened(self._open)


def blocks_of(message: ChatMessage, logprobs: Sequence[ChatTokenLogprob] = ()) -> list[Block]:
    """The blocks of a whole answer: what the model thought, what it said with these `logprobs`, what it calls."""
    blocks: list[Block] = []
    if message.get("reasoning_content"):
        blocks.append(Block(BlockKind.REASONING, len(blocks), text=message["reasoning_content"]))
    if message["content"] or logprobs:
        blocks.append(Block(BlockKind.TEXT, len(blocks), text=message["content"] or "", logprobs=list(logprobs)))
    for call in message.get("tool_calls", ()):
        function = call["function"]
        blocks.append(Block(BlockKind.CALL, len(blocks), call["id"], function["name"], function["arguments"]))
    return blocks
