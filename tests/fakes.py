"""A model that is a pure function of the tokens in its own paged cache, and a tokenizer whose tokens are bytes.

The fake keeps what real caches keep, one entry a slot, and reads the history back through the block table: a wrong
block, a freed block or a stale entry changes its logits, so equality of answers tests the paging too.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models, pre_tokenizers

from mtplx.batching.speculation import Costs, CostTable, DraftCost
from mtplx.batching.state import DraftRequest, Row, StepPlan
from mtplx.model.runner import Choose, Logits
from mtplx.model.spec import ModelSpec, RunnerInfo
from mtplx.text.tokenizer import Tokenizer

EOS = 256
VOCAB_SIZE = 260
History = tuple[int, ...]


def fake_spec(*, max_position: int = 512) -> ModelSpec:
    return ModelSpec(
        architecture="FakeForCausalLM",
        num_layers=1,
        hidden_size=8,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        vocab_size=VOCAB_SIZE,
        max_position=max_position,
        eos_ids=frozenset({EOS}),
    )


class FakeRunner:
    """Logits by a hash of the history, or all weight on `script(history)` when that gives an id.

    `fault(plan)` runs before each step and may raise. `widths` records every step's width.
    """

    def __init__(
        self,
        *,
        num_blocks: int = 256,
        block_size: int = 4,
        max_position: int = 512,
        script: Callable[[History], int | None] = lambda history: None,
        fault: Callable[[StepPlan], None] = lambda plan: None,
    ) -> None:
        self.spec = fake_spec(max_position=max_position)
        self.info = RunnerInfo("fake", "cpu", "float32", exact=True, exact_note="a pure function")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.script = script
        self.fault = fault
        self.plans: list[StepPlan] = []
        self.is_closed = False
        self._slots = np.full(num_blocks * block_size, -1, dtype=np.int64)

    def run(self, plan: StepPlan) -> Logits:
        self.plans.append(plan)
        self.fault(plan)
        wanted = [logits for row in plan.rows for logits in self._row(row)]
        return np.array(wanted, dtype=np.float32).reshape(plan.num_logits, VOCAB_SIZE)

    def close(self) -> None:
        self.is_closed = True

    def _row(self, row: Row) -> list[np.ndarray]:
        assert len(row.block_ids) * self.block_size >= row.end, "the row's blocks must cover it"
        slots = [row.block_ids[p // self.block_size] * self.block_size + p % self.block_size for p in range(row.end)]
        self._slots[slots[row.start :]] = row.token_ids
        self._on_written(slots, row)
        history = tuple(int(token_id) for token_id in self._slots[slots])
        return [self._logits(history[: row.end - back]) for back in reversed(range(row.num_logits))]

    def _on_written(self, slots: list[int], row: Row) -> None:
        """For a head that keeps what comes with each cache entry."""

    def _logits(self, history: History) -> np.ndarray:
        favourite = self.script(history)
        if favourite is not None:
            logits = np.zeros(VOCAB_SIZE)
            logits[favourite] = 50.0
            return logits
        logits = np.random.default_rng(zlib.crc32(repr(history).encode())).normal(size=VOCAB_SIZE) * 2
        logits[EOS] = -8.0  # ends seldom, so that lengths are the test's to choose
        logits[128:256] = -50.0  # plain ASCII, so that text is easy to read in a failing test
        logits[:32] = -50.0
        return logits


class FakeDraftingRunner(FakeRunner):
    """A fake with a head that is right with probability `p_right`, by a hash of the history: 1 always, 0 never.

    The head keeps what a real one would: for each of the model's cache slots a hidden state (a hash of the history up
    to there), for each of its own what it was made of. Every call asserts that after building its cache covers exactly
    the slots 1 to end - 1, each from the hidden state that the model left at the position before and the true token.
    `head_fault(requests)` runs before each call and may raise. `draft_calls` records the requests of every call.
    """

    max_draft_depth = 8

    def __init__(
        self,
        p_right: float = 1.0,
        *,
        head_fault: Callable[[Sequence[DraftRequest]], None] = lambda _: None,
        **fake: Any,
    ) -> None:
        super().__init__(**fake)
        self.p_right = p_right
        self.head_fault = head_fault
        self.draft_calls: list[list[DraftRequest]] = []
        num_slots = self.num_blocks * self.block_size
        self._hidden: list[int | None] = [None] * num_slots
        self._head: list[tuple[int, int] | None] = [None] * num_slots

    def draft(self, requests: Sequence[DraftRequest], choose: Choose) -> list[tuple[int, ...]]:
        self.draft_calls.append(list(requests))
        self.head_fault(requests)
        histories = [self._build(request) for request in requests]
        drafts: list[list[int]] = [[] for _ in requests]
        open_rows = [index for index, request in enumerate(requests) if request.depth > 0]
        for level in range(max((request.depth for request in requests), default=0)):
            open_rows = [index for index in open_rows if requests[index].depth > level]
            if not open_rows:
                break
            lines = [self._head_logits((*histories[index], *drafts[index])) for index in open_rows]
            chosen = choose(open_rows, np.array(lines, dtype=np.float32))
            for index, token_id in zip(open_rows, chosen, strict=True):
                if token_id is not None:
                    drafts[index].append(token_id)
                    self._spoil_slot(requests[index], level)
            open_rows = [index for index, token_id in zip(open_rows, chosen, strict=True) if token_id is not None]
        return [tuple(tokens) for tokens in drafts]

    def _on_written(self, slots: list[int], row: Row) -> None:
        for position in range(row.start, row.end):
            history = tuple(int(token_id) for token_id in self._slots[slots[: position + 1]])
            self._hidden[slots[position]] = hash(history)

    def _build(self, request: DraftRequest) -> History:
        """Builds the request's slots, checks all up to its end, and returns the tokens up to there."""
        assert request.start >= 1, "slot 0 has no hidden state before it"
        assert request.token_ids, "the last slot gives the first guess, so at least that is named"
        end = request.end
        assert len(request.block_ids) * self.block_size >= end + request.depth, "guesses and their rows need blocks"
        slots = [self._slot(request, position) for position in range(end)]
        for position, token_id in enumerate(request.token_ids, start=request.start):
            hidden = self._hidden[slots[position - 1]]
            assert hidden is not None, "the model hasn't computed the position before"
            self._head[slots[position]] = (hidden, token_id)
        tokens = (*(int(token_id) for token_id in self._slots[slots[:-1]]), request.token_ids[-1])
        for position in range(1, end):
            expected = (hash(tokens[:position]), tokens[position])
            assert self._head[slots[position]] == expected, f"head slot {position} of {end} is missing or stale"
        return tokens

    def _slot(self, request: DraftRequest, position: int) -> int:
        return request.block_ids[position // self.block_size] * self.block_size + position % self.block_size

    def _spoil_slot(self, request: DraftRequest, level: int) -> None:
        """A guess becomes the next slot's token, if another guess may follow: never valid for a later call."""
        if level + 1 < request.depth:
            self._head[self._slot(request, request.end + level)] = (-1, -1)

    def _head_logits(self, history: History) -> np.ndarray:
        luck = zlib.crc32(repr(("head", history)).encode()) / 2**32
        if luck < self.p_right:
            return self._logits(history)
        wrong = np.zeros(VOCAB_SIZE)
        wrong[128 + len(history) % 100] = 1e6  # no fake answer has such a token
        return wrong


def flat_costs(*, per_token: float = 0.08, per_level: float = 0.05) -> Costs:
    """Seconds of a machine on which many tokens cost little more than one: drafts pay unless they are mostly wrong."""
    return Costs(CostTable(tuple(1.0 + per_token * n for n in range(64))), DraftCost(per_level, per_token / 10))


def saying(text: str, *, prompt_len: int, then: int = EOS) -> Callable[[History], int]:
    """A script that says `text`, byte by byte, after a prompt of that length, then `then` for ever."""
    data = text.encode()

    def script(history: History) -> int:
        index = len(history) - prompt_len
        return data[index] if index < len(data) else then

    return script


def write_byte_tokenizer(folder: Path) -> Path:
    """A tokenizer folder in which token id b is byte b, 256 is <eos> and 257 to 259 are special; returns the folder."""
    alphabet = _byte_alphabet()
    raw = RawTokenizer(models.BPE(vocab={char: byte for byte, char in alphabet.items()}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(["<eos>", "<user>", "<assistant>", "<pad>"])
    folder.mkdir(parents=True, exist_ok=True)
    raw.save(str(folder / "tokenizer.json"))
    template = (
        "{% for m in messages %}<user>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    config = {"eos_token": "<eos>", "chat_template": template, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def load_byte_tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(write_byte_tokenizer(folder))


def _byte_alphabet() -> dict[int, str]:
    """GPT-2's printable stand-ins for bytes. Source: the byte-level BPE of Radford et al. 2019."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in alphabet)
    alphabet.update({byte: chr(256 + index) for index, byte in enumerate(others)})
    return alphabet
