"""Which cache blocks are free, and how many hold each of the others; knows neither sequences nor what is in a block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable


class BlockAllocator:
    """Hands out the block ids 0 to num_blocks - 1 and counts the holders of each.

    Invariant: every id is held, or kept, or blank, and only one of these. A kept block has no holder and is free like
    a blank one, but what is in it may be wanted again: `allocate` takes blank blocks first, then those kept longest,
    and tells `on_evict`.

    A caller that may run short asks `num_free` first: what to do about a shortage (wait, preempt, cut drafts) is a
    scheduling decision, so `allocate` doesn't make it.

        blocks = BlockAllocator(num_blocks=4, block_size=16)
        held = blocks.allocate(blocks.blocks_for(20))    # [0, 1]: 20 tokens need two blocks
        blocks.hold(held[:1])                            # block 0 has two holders
        blocks.free(held)                                # block 1 is free again: num_free is 3
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        assert num_blocks >= 1, num_blocks
        assert block_size >= 1, block_size
        self.on_evict: Callable[[int], None] = lambda block_id: None
        self._block_size = block_size
        self._num_holds = [0] * num_blocks
        self._is_worth_keeping = [False] * num_blocks
        self._blank = list(range(num_blocks - 1, -1, -1))  # a stack; the block freed last is the likeliest in a cache
        self._kept: dict[int, None] = {}  # the one kept longest first

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self._block_size

    @property
    def num_total(self) -> int:
        return len(self._num_holds)

    @property
    def num_free(self) -> int:
        return len(self._blank) + len(self._kept)

    @property
    def num_used(self) -> int:
        """Blocks that somebody holds; one with several holders counts once."""
        return self.num_total - self.num_free

    def num_holds(self, block_id: int) -> int:
        return self._num_holds[block_id]

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks `num_tokens` cache entries fill, the last one perhaps in part."""
        return -(-num_tokens // self._block_size)

    def allocate(self, n: int) -> list[int]:
        """Returns `n` block ids, now held by the caller alone; all or nothing.

        Raises:
            AssertionError: fewer than `n` are free.
        """
        assert 0 <= n <= self.num_free, f"{n} blocks asked for, {self.num_free} free"
        block_ids = [self._blank.pop() if self._blank else self._evict() for _ in range(n)]
        for block_id in block_ids:
            self._num_holds[block_id] = 1
        return block_ids

    def hold(self, block_ids: Iterable[int]) -> None:
        """Adds a holder to each of these blocks, which are held or kept.

        Raises:
            AssertionError: a block is neither.
        """
        for block_id in block_ids:
            assert self._num_holds[block_id] or block_id in self._kept, f"block {block_id} is blank"
            self._kept.pop(block_id, None)
            self._num_holds[block_id] += 1

    def free(self, block_ids: Iterable[int]) -> None:
        """Gives up one hold on each block. Those without another become blank, or kept: the first is evicted first.

        Raises:
            AssertionError: a block isn't held.
        """
        for block_id in block_ids:
            assert self._num_holds[block_id], f"block {block_id} is freed twice"
            self._num_holds[block_id] -= 1
            if self._num_holds[block_id]:
                continue
            if self._is_worth_keeping[block_id]:
                self._kept[block_id] = None
            else:
                self._blank.append(block_id)

    def keep(self, block_id: int) -> None:
        """Says of a held block that it is to be kept when its last holder has gone."""
        assert self._num_holds[block_id], f"block {block_id} is not held"
        self._is_worth_keeping[block_id] = True

    def discard(self, block_id: int) -> None:
        """Says of a held or kept block that what is in it won't be wanted any more."""
        self._is_worth_keeping[block_id] = False
        if block_id in self._kept:
            del self._kept[block_id]
            self._blank.append(block_id)

    def worth_keeping(self) -> list[int]:
        """The blocks, held or kept, of which `keep` was said, ascending."""
        return [block_id for block_id, is_worth in enumerate(self._is_worth_keeping) if is_worth]

    def check(self, holds: Iterable[int] | None = None) -> None:
        """Asserts the invariant; with `holds` (every holder's ids) also that these are exactly the holds there are."""
        free = sorted([*self._blank, *self._kept])
        assert free == [block_id for block_id, num in enumerate(self._num_holds) if num == 0], "free blocks are wrong"
        assert all(self._is_worth_keeping[block_id] for block_id in self._kept), "a block is kept for nothing"
        assert not any(self._is_worth_keeping[block_id] for block_id in self._blank), "a block's content is lost"
        if holds is not None:
            held = {block_id: num for block_id, num in enumerate(self._num_holds) if num}
            assert Counter(holds) == held, "a block is leaked, or has a holder that wasn't counted"

    def _evict(self) -> int:
        block_id = next(iter(self._kept))
        del self._kept[block_id]
        self._is_worth_keeping[block_id] = False
        self.on_evict(block_id)
        return block_id
