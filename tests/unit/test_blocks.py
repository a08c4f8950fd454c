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
