"""Passages on disk: files of a few hundred each, written whole or not at all, so that a killed run goes on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from mtplx.model.checkpoint import read_header


@dataclass(frozen=True, slots=True)
class Passage:
    """`token_ids` [N] and the hidden states [M, H] (float16) of the first M of them; M is N or N - 1.

    The answer begins at token `answer_start`; what comes before is template and prompt.
    """

    token_ids: npt.NDArray[np.int32]
    hidden: npt.NDArray[np.float16]
    answer_start: int


def write_shard(path: Path, passages: Sequence[Passage]) -> None:
    """Writes the passages, over what was there."""
    numbers = [(len(p.token_ids), len(p.hidden), p.answer_start) for p in passages]
    tensors = {
        "numbers": np.array(numbers, dtype=np.int32).reshape(-1, 3),
        "token_ids": np.concatenate([p.token_ids for p in passages]),
        "hidden": np.concatenate([p.hidden for p in passages]),
    }
    part = path.with_suffix(".part")
    save_file(tensors, part)
    os.replace(part, path)


def read_shard(path: Path) -> list[Passage]:
    """What `write_shard` wrote; mapped, so that states are read from disk when they are used.

    Raises:
        ModelError: the file is damaged.
    """
    header = read_header(path)
    data = np.memmap(path, dtype=np.uint8, mode="r")

    def tensor(name: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        info = header[name]
        return data[info.begin : info.end].view(dtype).reshape(info.shape)

    token_ids, hidden = tensor("token_ids", np.int32), tensor("hidden", np.float16)
    passages, token, state = [], 0, 0
    for num_tokens, num_states, answer_start in tensor("numbers", np.int32).tolist():
        ids, states = token_ids[token : token + num_tokens], hidden[state : state + num_states]
        passages.append(Passage(ids, states, answer_start))
        token, state = token + num_tokens, state + num_states
    return passages
