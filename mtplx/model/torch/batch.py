"""Lays the rows of a plan out flat, as index arrays that every layer shares. No tensors, no model.

    plan    row A: tokens a0 a1 a2 from position 40     row B: token b0 from position 7
    flat    token_ids  a0 a1 a2 b0      positions  40 41 42  7
    runs    Run(first=0, start=40, length=3), Run(first=3, start=7, length=1)

A batch may be cut anywhere (exact mode cuts every 16 tokens): the rest of a row is then a run of the next batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mtplx.batching.state import Row, StepPlan
from mtplx.model.cache import BLOCK_SIZE

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Run:
    """`length` consecutive tokens of one sequence: flat places from `first`, absolute positions from `start`."""

    first: int
    start: int
    length: int
    block_ids: tuple[int, ...]
    origin: int = 0  # the first position that has a cache entry

    @property
    def end(self) -> int:
        """One past the absolute position of the last token."""
        return self.start + self.length

    def first_visible(self, position: int, window: int | None) -> int:
        """The first position that a token at `position` sees."""
        return self.origin if window is None else max(self.origin, position - window + 1)


@dataclass(frozen=True, slots=True)
class FlatBatch:
    """What one forward pass of the trunk takes. All arrays are int64 of N, padding included; `wanted` are flat places.

    Places beyond the runs' are padding: token 0 at position 0, written to the spare block.
    """

    token_ids: Ints
    positions: Ints
    slots: Ints
    runs: tuple[Run, ...]
    wanted: Ints

    @property
    def num_padding(self) -> int:
        return len(self.token_ids) - sum(run.length for run in self.runs)


def flatten(plan: StepPlan, *, origin: int = 0) -> FlatBatch:
    """Returns all rows of the plan as one batch without padding; positions below `origin` have no cache entry."""
    return _lay_out([_Piece(row, 0, len(row.token_ids)) for row in plan.rows], width=None, origin=origin)


def cut_into_tiles(plan: StepPlan, width: int, spare_block: int) -> Iterator[FlatBatch]:
    """Yields the plan's tokens in order as batches of exactly `width` places, the last one padded.

    The token before another in the same sequence is in the same tile or an earlier one.
    """
    pieces: list[_Piece] = []
    room = width
    for row in plan.rows:
        done = 0
        while done < len(row.token_ids):
            stop = min(len(row.token_ids), done + room)
            pieces.append(_Piece(row, done, stop))
            room -= stop - done
            done = stop
            if room == 0:
                yield _lay_out(pieces, width, spare_block)
                pieces, room = [], width
    if pieces:
        yield _lay_out(pieces, width, spare_block)


def slots_before(batch: FlatBatch) -> Ints:
    """Returns the cache slot of the position before each token's; no token may be the first of its sequence."""
    return np.concatenate([_slots(run.block_ids, run.start - 1, run.end - 1) for run in batch.runs])


@dataclass(frozen=True, slots=True)
class _Piece:
    """Tokens `begin` to `stop` of a row."""

    row: Row
    begin: int
    stop: int


def _lay_out(pieces: list[_Piece], width: int | None, spare_block: int = 0, origin: int = 0) -> FlatBatch:
    num_tokens = sum(piece.stop - piece.begin for piece in pieces)
    size = num_tokens if width is None else width
    token_ids = np.zeros(size, dtype=np.int64)
    positions = np.zeros(size, dtype=np.int64)
    slots = spare_block * BLOCK_SIZE + np.arange(size, dtype=np.int64) % BLOCK_SIZE
    runs: list[Run] = []
    wanted: list[int] = []
    first = 0
    for piece in pieces:
        row, length = piece.row, piece.stop - piece.begin
        run = Run(first, row.start + piece.begin, length, row.block_ids, origin)
        assert len(row.block_ids) * BLOCK_SIZE >= run.end, "a row's blocks must cover its last position"
        places = slice(first, first + length)
        token_ids[places] = row.token_ids[piece.begin : piece.stop]
        positions[places] = np.arange(run.start, run.end)
        slots[places] = _slots(run.block_ids, run.start, run.end)
        first_wanted = max(len(row.token_ids) - row.num_logits, piece.begin)
        wanted += range(first + first_wanted - piece.begin, first + length)
        runs.append(run)
        first += length
    return FlatBatch(token_ids, positions, slots, tuple(runs), np.array(wanted, dtype=np.int64))


def _slots(block_ids: tuple[int, ...], start: int, end: int) -> Ints:
    positions = np.arange(start, end)
    blocks = np.array(block_ids, dtype=np.int64)
    return blocks[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
