"""The line of sequences that wait to start: who stands before whom; knows neither blocks nor who may start.

Higher priorities stand in front, and among equals those that arrived first. So that nobody waits for ever behind an
endless row of more urgent ones, who has been passed by enough of them rises to their priority.
"""

from __future__ import annotations

from collections.abc import Iterator

from mtplx.batching.state import Sequence

MAX_PASSED = 64
"""Later arrivals of a higher priority that start before a sequence does, then it gets theirs."""


class WaitingLine:
    """Invariant, which `check` asserts: priorities never rise towards the end."""

    def __init__(self) -> None:
        self._line: list[Sequence] = []

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._line)

    def __len__(self) -> int:
        return len(self._line)

    def __getitem__(self, index: int) -> Sequence:
        return self._line[index]

    def join(self, sequence: Sequence) -> None:
        """Puts a sequence behind all others of its priority."""
        less_urgent = (index for index, other in enumerate(self._line) if other.priority < sequence.priority)
        self._line.insert(next(less_urgent, len(self._line)), sequence)

    def rejoin(self, sequence: Sequence) -> None:
        """Puts a sequence before the first of its priority that arrived later."""
        place = (-sequence.priority, sequence.seq_id)
        behind = (index for index, other in enumerate(self._line) if (-other.priority, other.seq_id) > place)
        self._line.insert(next(behind, len(self._line)), sequence)

    def take(self, index: int) -> Sequence:
        """Removes a sequence that is about to start, and counts it for the less urgent that arrived before it.

        priorities 9 0 0, arrived 3 1 2, take(0): the last two have been passed once more
        """
        taken = self._line.pop(index)
        for other in self._line:
            if other.priority < taken.priority and other.seq_id < taken.seq_id:
                other.num_passed += 1
        for other in [other for other in self._line if other.num_passed >= MAX_PASSED]:
            other.priority, other.num_passed = taken.priority, 0
            self._line.remove(other)
            self.rejoin(other)
        return taken

    def remove(self, sequence: Sequence) -> None:
        self._line.remove(sequence)

    def check(self) -> None:
        """Asserts the invariant."""
        priorities = [sequence.priority for sequence in self._line]
        assert priorities == sorted(priorities, reverse=True), "the less urgent stand in front"
