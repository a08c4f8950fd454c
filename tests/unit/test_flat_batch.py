"""How a plan's rows are laid out flat, and cut into tiles."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mtplx.batching.state import Row, StepPlan
from mtplx.model.cache import BLOCK_SIZE
from mtplx.model.torch.batch import FlatBatch, cut_into_tiles, flatten, slots_before

WIDTH = 16
SPARE = 99


@st.composite
def plans(draw: st.DrawFn) -> StepPlan:
    rows = []
    for seq_id in range(draw(st.integers(0, 6))):
        start, length = draw(st.integers(0, 50)), draw(st.integers(1, 40))
        num_blocks = -(-(start + length) // BLOCK_SIZE)
        block_ids = tuple(seq_id * 8 + index for index in draw(st.permutations(range(num_blocks))))
        tokens = tuple(range(100 * seq_id, 100 * seq_id + length))
        rows.append(Row(seq_id, start, tokens, block_ids, num_logits=draw(st.integers(0, length))))
    return StepPlan(tuple(rows))


def expected_places(plan: StepPlan) -> list[tuple[int, int, int, bool]]:
    """Token, position, slot and whether its logits are wanted, for every token in order."""
    return [
        (
            token,
            row.start + offset,
            row.block_ids[(row.start + offset) // BLOCK_SIZE] * BLOCK_SIZE + (row.start + offset) % BLOCK_SIZE,
            offset >= len(row.token_ids) - row.num_logits,
        )
        for row in plan.rows
        for offset, token in enumerate(row.token_ids)
    ]


def places(batch: FlatBatch) -> list[tuple[int, int, int, bool]]:
    count = len(batch.token_ids) - batch.num_padding
    wanted = set(batch.wanted.tolist())
    return [
        (int(batch.token_ids[place]), int(batch.positions[place]), int(batch.slots[place]), place in wanted)
        for place in range(count)
    ]


@given(plans())
def test_flat_is_every_token_in_order(plan: StepPlan) -> None:
    batch = flatten(plan)
    assert batch.num_padding == 0
    assert places(batch) == expected_places(plan)
    assert [(run.start, run.length, run.block_ids) for run in batch.runs] == [
        (row.start, len(row.token_ids), row.block_ids) for row in plan.rows
    ]


@given(plans())
def test_tiles_are_the_same_tokens_in_full_width(plan: StepPlan) -> None:
    tiles = list(cut_into_tiles(plan, WIDTH, SPARE))
    assert all(len(array) == WIDTH for tile in tiles for array in (tile.token_ids, tile.positions, tile.slots))
    assert all(tile.num_padding == 0 for tile in tiles[:-1])
    assert [place for tile in tiles for place in places(tile)] == expected_places(plan)
    for tile in tiles:
        for run in tile.runs:
            positions = tile.positions[run.first : run.first + run.length].tolist()
            assert positions == list(range(run.start, run.end))


@given(plans())
def test_padding_goes_to_the_spare_block_alone(plan: StepPlan) -> None:
    for tile in cut_into_tiles(plan, WIDTH, SPARE):
        padding = tile.slots[WIDTH - tile.num_padding :].tolist()
        assert len(set(padding)) == tile.num_padding
        assert all(slot // BLOCK_SIZE == SPARE for slot in padding)


def test_the_slot_before_each_token_crosses_blocks() -> None:
    """Rows from position 15 and 17, in blocks 4 2 and 7 1."""
    plan = StepPlan((Row(0, 15, (5, 6), (4, 2), num_logits=0), Row(1, 17, (8,), (7, 1), num_logits=1)))
    assert slots_before(flatten(plan)).tolist() == [4 * 16 + 14, 4 * 16 + 15, 1 * 16 + 0]


def test_nobody_sees_below_the_origin() -> None:
    (run,) = flatten(StepPlan((Row(0, 2, (5, 6, 7), (4,), num_logits=0),)), origin=2).runs
    assert [run.first_visible(position, None) for position in (2, 4)] == [2, 2]
    assert [run.first_visible(position, 2) for position in (2, 3, 4)] == [2, 2, 3]
