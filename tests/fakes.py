"""A model that is a pure function of the tokens in its own paged cache, and a tokenizer whose tokens are bytes.

The fake keeps what real caches keep, one entry a slot, and reads the history back through the block table: a wrong
block, a freed block or a stale entry changes its logits, so equality of answers tests the paging too.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models, pre_tokenizers

from mtplx.batching.state import Row, StepPlan
from mtplx.model.runner import Logits
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
        history = tuple(int(token_id) for token_id in self._slots[slots])
        return [self._logits(history[: row.end - back]) for back in reversed(range(row.num_logits))]

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
