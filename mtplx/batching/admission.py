"""Who may start next and what a start costs in cache entries; pure functions, blind to modes.

A start takes the blocks of everything that is pending, plus one token, at once: a prefill that has begun never runs out
of blocks. Whoever starts also leaves one free block for each running sequence that can still grow, so that it isn't
preempted as soon as a neighbour crosses a block's edge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from mtplx.batching.state import Sequence

MAX_OVERTAKEN = 8
"""How many sequences may be admitted before one that waits ahead of them, at its cost."""


def max_entries(sequence: Sequence) -> int:
    """The most cache entries it can ever need; the last token of an answer is never fed back."""
    return sequence.prompt_len + max(1, sequence.stops.max_tokens) - 1


def entries_to_start(sequence: Sequence) -> int:
    """Cache entries that admission takes for it: all its tokens (after a preemption the emitted ones too) and one."""
    return min(len(sequence.token_ids) + 1, max_entries(sequence))


@dataclass(frozen=True, slots=True)
class Room:
    """What the cache can give: blocks that a newcomer may take now, all there are, and who is running on them.

    `num_shared` says how many of those that a sequence needs to start it would share with the running.
    """

    num_spare: int
    num_total: int
    running: Seq[Sequence]
    blocks_for: Callable[[int], int]
    num_shared: Callable[[Sequence], int]

    def to_start(self, sequence: Sequence) -> int:
        return self.blocks_for(entries_to_start(sequence))

    def can_start(self, sequence: Sequence) -> bool:
        num_missing = self.to_start(sequence) - self.num_spare
        return num_missing <= 0 or num_missing <= self.num_shared(sequence)

    def most(self, sequence: Sequence) -> int:
        return self.blocks_for(max_entries(sequence))

    def beside(self, waiting: Sequence) -> int:
        """Blocks that one more later arrival can hold while its elders grow to their ends and `waiting` then starts."""
        elders = sum(self.most(sequence) for sequence in self.running if sequence.seq_id < waiting.seq_id)
        later = sum(self.most(sequence) for sequence in self.running if sequence.seq_id > waiting.seq_id)
        return self.num_total - later - max(elders, self.to_start(waiting))


def next_to_admit(waiting: Iterable[Sequence], room: Room, max_overtaken: int) -> int | None:
    """Returns the index of the first waiting sequence that may start; None if there is none.

    Those before it are overtaken. One that has been overtaken `max_overtaken` times is passed only by those that fit
    beside it for as long as they live: what its elders free then gathers until it starts. So a huge sequence is
    admitted in bounded time, and small ones behind it don't wait for its elders' ends. The same holds from the start
    for one that was preempted: the cache has shown to be too full, and a newcomer would be the next to lose its work.
    """
    num_beside = room.num_total
    for index, sequence in enumerate(waiting):
        if room.most(sequence) <= num_beside and room.can_start(sequence):
            return index
        if sequence.num_overtaken >= max_overtaken or sequence.num_preempted:
            num_beside = min(num_beside, room.beside(sequence))
            if num_beside <= 0:
                return None
    return None
