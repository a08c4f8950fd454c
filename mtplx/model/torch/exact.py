"""Finds out at start-up whether a runner's rows really have the same bits whatever shares their batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mtplx.batching.state import Row, StepPlan
from mtplx.model.cache import BLOCK_SIZE
from mtplx.model.runner import Runner
from mtplx.model.torch.runner import TILE_ROWS

# Blocks that the check needs: the prompt's first, and one for each row of a tile.
CHECK_BLOCKS = 1 + TILE_ROWS


def find_difference(runner: Runner) -> str | None:
    """Runs random tokens through `runner` in several ways, about nine tiles in all, and compares bits of logits.

    Returns None if all agree, else what changed a row's bits, as the end of the sentence "not exact: bits differ ...".
    The reference is a chunk of one tile's width behind a prompt of the same length:

        block 0     tokens 0 .. 15      the prompt, shared
        block 1     tokens 16 .. 31     the chunk whose logits are the reference
        block 1+i   token 16 again      one copy for each place of a tile
    """
    vocab_size = runner.spec.vocab_size
    tokens = tuple(int(token_id) for token_id in np.random.default_rng(0).integers(vocab_size, size=3 * BLOCK_SIZE))
    prompt, chunk, others = tokens[:BLOCK_SIZE], tokens[BLOCK_SIZE : 2 * BLOCK_SIZE], tokens[2 * BLOCK_SIZE :]
    runner.run(StepPlan((Row(0, 0, prompt, (0,), num_logits=0),)))
    whole = Row(0, BLOCK_SIZE, chunk, (0, 1), num_logits=len(chunk))
    reference = runner.run(StepPlan((whole,)))

    def alone(index: int) -> Row:
        return Row(0, BLOCK_SIZE + index, (chunk[index],), (0, 1), num_logits=1)

    copies = tuple(Row(i, BLOCK_SIZE, chunk[:1], (0, 1 + i), num_logits=1) for i in range(TILE_ROWS))
    strangers = tuple(Row(i, 0, (others[i],), (1 + i,), num_logits=1) for i in range(1, TILE_ROWS))
    shifted = Row(1, 0, others[:3], (TILE_ROWS,), num_logits=0)
    cases = (
        _Case("with the place in the tile", copies, slice(None), reference[:1].repeat(TILE_ROWS, axis=0)),
        _Case("with the neighbours", (*strangers[:7], alone(0), *strangers[7:]), slice(7, 8), reference[:1]),
        _Case("where a chunk is cut", (shifted, whole), slice(None), reference),
        _Case("between a chunk and its first token alone", (alone(0),), slice(None), reference[:1]),
        _Case("between a chunk and its last token alone", (alone(15),), slice(None), reference[15:]),
    )
    for case in cases:
        if runner.run(StepPlan(case.rows))[case.compared].tobytes() != case.expected.tobytes():
            return case.what
    return None


@dataclass(frozen=True, slots=True)
class _Case:
    """`compared` picks the logits of the plan's rows that must have the bits of `expected`."""

    what: str
    rows: tuple[Row, ...]
    compared: slice
    expected: npt.NDArray[np.floating[Any]]
