"""Who may start next and what a start costs in cache entries; pure functions, blind to modes.

A start takes the blocks of everything that is pending, plus one token, at once: a prefill that has begun never runs out
of blocks. Whoever starts also leaves one free block for each running sequence that can still grow, so that it isn't
preempted as soon as a neighbour crosses a block's edge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mtplx.batching.state import Sequence

MAX_OVERTAKEN = 8
"""How many sequences may be admitted before one that waits ahead of them."""


def max_entries(sequence: Sequence) -> int:
    """The most cache entries it can ever need; the last token of an answer is never fed back."""
    return sequence.prompt_len + sequence.stops.max_tokens - 1


def entries_to_start(sequence: Sequence) -> int:
    """Cache entries that admission takes for it: all its tokens (after a preemption the emitted ones too) and one."""
    return min(len(sequence.token_ids) + 1, max_entries(sequence))


def next_to_admit(
    waiting: Iterable[Sequence], num_spare: int, blocks_to_start: Callable[[Sequence], int], max_overtaken: int
) -> int | None:
    """Returns the index of the first waiting sequence that `num_spare` blocks let start; None if there is none.

    Those before it are overtaken. Nobody passes one that has been overtaken `max_overtaken` times: what its
    neighbours free then gathers until it fits, so a huge sequence is admitted in bounded time, and small ones
    behind it get through as long as its patience lasts. Nobody passes one that was preempted either: the cache has
    shown to be too full, and a newcomer would only be the next to lose its work.
    """
    for index, sequence in enumerate(waiting):
        if blocks_to_start(sequence) <= num_spare:
            return index
        if sequence.num_overtaken >= max_overtaken or sequence.num_preempted:
            return None
    return None
