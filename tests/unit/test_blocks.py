"""The block allocator keeps every block in exactly one place."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtplx.batching.blocks import BlockAllocator


def test_counts_and_ids() -> None:
    blocks = BlockAllocator(num_blocks=5, block_size=16)
    held = blocks.allocate(3)
    assert sorted({*held, *blocks.allocate(2)}) == [0, 1, 2, 3, 4]
    assert (blocks.num_total, blocks.num_used, blocks.num_free, blocks.block_size) == (5, 5, 0, 16)
    blocks.free(held)
    assert (blocks.num_used, blocks.num_free) == (2, 3)
    blocks.check()


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (160, 10)])
def test_blocks_for_rounds_up(num_tokens: int, num_blocks: int) -> None:
    assert BlockAllocator(1, 16).blocks_for(num_tokens) == num_blocks


def test_the_same_calls_give_the_same_ids() -> None:
    first, second = BlockAllocator(8, 4), BlockAllocator(8, 4)
    for blocks in (first, second):
        blocks.free(blocks.allocate(5)[1:3])
    assert first.allocate(4) == second.allocate(4)


def test_too_many_is_refused_and_nothing_is_taken() -> None:
    blocks = BlockAllocator(2, 4)
    with pytest.raises(AssertionError, match="3 blocks asked for, 2 free"):
        blocks.allocate(3)
    assert blocks.num_free == 2


def test_double_free_is_caught() -> None:
    blocks = BlockAllocator(2, 4)
    held = blocks.allocate(1)
    blocks.free(held)
    with pytest.raises(AssertionError, match="freed twice"):
        blocks.free(held)


@pytest.mark.parametrize("holds", [[0], [0, 0], [0, 1, 2]])
def test_check_sees_leaks_and_strangers(holds: list[int]) -> None:
    blocks = BlockAllocator(3, 4)
    blocks.allocate(2)
    blocks.check([1, 0])
    with pytest.raises(AssertionError, match="leaked"):
        blocks.check(holds)


class TestSharing:
    def test_a_block_is_free_when_its_last_holder_has_gone(self) -> None:
        blocks = BlockAllocator(3, 4)
        held = blocks.allocate(2)
        blocks.hold(held[:1])
        blocks.check([*held, held[0]])
        blocks.free(held)
        assert (blocks.num_used, blocks.num_free, blocks.num_holds(held[0])) == (1, 2, 1)
        blocks.free(held[:1])
        blocks.check([])

    def test_a_holder_that_was_not_counted_is_seen(self) -> None:
        blocks = BlockAllocator(3, 4)
        held = blocks.allocate(1)
        with pytest.raises(AssertionError, match="holder"):
            blocks.check([*held, *held])

    def test_kept_blocks_go_last_and_in_the_order_in_which_they_were_freed(self) -> None:
        blocks, evicted = BlockAllocator(4, 4), list[int]()
        blocks.on_evict = evicted.append
        first, second, third, _ = held = blocks.allocate(4)
        for block_id in (first, second, third):
            blocks.keep(block_id)
        blocks.free([second, *held[3:], third, first])
        blocks.check([])
        assert blocks.num_free == 4
        blocks.allocate(1)
        assert evicted == [], "the blank one comes first"
        blocks.hold([third])
        blocks.free([third])
        blocks.allocate(2)
        assert evicted == [second, first], "what was held again is as good as new"
        assert blocks.worth_keeping() == [third]

    def test_what_is_not_wanted_any_more_is_blank(self) -> None:
        blocks, evicted = BlockAllocator(2, 4), list[int]()
        blocks.on_evict = evicted.append
        held, kept = blocks.allocate(2)
        for block_id in (held, kept):
            blocks.keep(block_id)
        blocks.free([kept])
        for block_id in (held, kept):
            blocks.discard(block_id)
            blocks.check([held])
        blocks.free([held])
        blocks.allocate(2)
        assert evicted == []

    def test_nobody_can_hold_a_blank_block(self) -> None:
        with pytest.raises(AssertionError, match="blank"):
            BlockAllocator(2, 4).hold([0])


@given(num_blocks=st.integers(1, 40), seed=st.integers(0, 2**32))
def test_random_operations_keep_the_partition(num_blocks: int, seed: int) -> None:
    rng = random.Random(seed)
    blocks = BlockAllocator(num_blocks, 4)
    held: list[int] = []
    for _ in range(60):
        if held and rng.random() < 0.5:
            rng.shuffle(held)
            cut = rng.randrange(1, len(held) + 1)
            blocks.free(held[:cut])
            del held[:cut]
        else:
            held += blocks.allocate(rng.randint(0, blocks.num_free))
        blocks.check(held)
    blocks.free(held)
    assert blocks.num_free == num_blocks
