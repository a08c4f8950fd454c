"""Which cache blocks are free and which are held; knows nothing of sequences or of what a block contains."""

from __future__ import annotations

from collections.abc import Iterable


class BlockAllocator:
    """Hands out the block ids 0 to num_blocks - 1.

    Invariant: every id is held once or is in the free list once, never both.

    A caller that may run short asks `num_free` first: what to do about a shortage (wait, preempt, cut drafts) is a
    scheduling decision, so `allocate` doesn't make it.

        blocks = BlockAllocator(num_blocks=4, block_size=16)
        held = blocks.allocate(blocks.blocks_for(20))    # [0, 1]: 20 tokens need two blocks
        blocks.free(held)                                # num_free is 4 again
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        assert num_blocks >= 1, num_blocks
        assert block_size >= 1, block_size
        self._block_size = block_size
        self._is_held = [False] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack; the block freed last is the likeliest in a cache

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self._block_size

    @property
    def num_total(self) -> int:
        return len(self._is_held)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return len(self._is_held) - len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks `num_tokens` cache entries fill, the last one perhaps in part."""
        return -(-num_tokens // self._block_size)

    def allocate(self, n: int) -> list[int]:
        """Returns `n` block ids, now held by the caller; all or nothing.

        Raises:
            AssertionError: fewer than `n` are free.
        """
        assert 0 <= n <= self.num_free, f"{n} blocks asked for, {self.num_free} free"
        block_ids = [self._free.pop() for _ in range(n)]
        for block_id in block_ids:
            self._is_held[block_id] = True
        return block_ids

    def free(self, block_ids: Iterable[int]) -> None:
        """Gives up the caller's hold on each block.

        Raises:
            AssertionError: a block isn't held.
        """
        for block_id in block_ids:
            assert self._is_held[block_id], f"block {block_id} is freed twice"
            self._is_held[block_id] = False
            self._free.append(block_id)

    def check(self, holds: Iterable[int] | None = None) -> None:
        """Asserts the invariant; with `holds` (all holders' ids) also that these are exactly the blocks in use."""
        free = sorted(self._free)
        assert free == [block_id for block_id, is_held in enumerate(self._is_held) if not is_held], "free list is wrong"
        if holds is not None:
            held = [block_id for block_id, is_held in enumerate(self._is_held) if is_held]
            assert sorted(holds) == held, "a block is leaked, or held twice"
