"""Lays a plan's rows out flat, as the arrays of one call into the library; ints only."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from mtplx.batching.state import StepPlan


@dataclass(frozen=True, slots=True)
class StepArrays:
    """One step, int32 throughout; N tokens of S rows, each row a sequence to the library.

    plan         row A: tokens 7 8 from position 40, blocks 3 0 5, logits of 8;   row B: token 9 at position 2, block 1
    token_ids    7 8 9         positions    40 41 2      sequence_of  0 0 1
    block_begin  0 3 4         block_ids    3 0 5 1      wanted       1 2
    """

    token_ids: array[int]
    positions: array[int]
    sequence_of: array[int]
    block_begin: array[int]
    block_ids: array[int]
    wanted: array[int]


def lay_out(plan: StepPlan) -> StepArrays:
    """Returns the arrays of a plan; `array` because it takes tuples of ints faster than numpy does."""
    token_ids, positions, sequence_of = array("i"), array("i"), array("i")
    block_begin, block_ids, wanted = array("i", (0,)), array("i"), array("i")
    for index, row in enumerate(plan.rows):
        num_tokens = len(row.token_ids)
        token_ids.extend(row.token_ids)
        positions.extend(range(row.start, row.start + num_tokens))
        sequence_of.extend((index,) * num_tokens)
        block_ids.extend(row.block_ids)
        block_begin.append(len(block_ids))
        wanted.extend(range(len(token_ids) - row.num_logits, len(token_ids)))
    return StepArrays(token_ids, positions, sequence_of, block_begin, block_ids, wanted)
