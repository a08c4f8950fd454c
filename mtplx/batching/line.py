"""The line of sequences that wait to start: who stands before whom; knows neither blocks nor who may start.

Higher priorities stand in front. Among equals tenants take turns, and a tenant's own stand as they arrived, so one who
sends much waits for himself. So that nobody waits for ever behind an endless row of more urgent ones, who has been
passed by enough of them rises to their priority.
"""

from __future__ import annotations

from collections.abc import Iterator

from mtplx.batching.state import Sequence

MAX_PASSED = 64
"""Later arrivals of a higher priority that start before a sequence does, then it gets theirs."""


class WaitingLine:
    """Invariant, which `check` asserts: it is sorted by priority, highest first, then by turn.

    Turns are start tags of fair queueing. A tenant's next turn is one after his last, but none that has passed: the
    present turn is that of the latest who started.

        a0 a1 a2 a3 have come, a0 and a1 start, b b b arrive      ->  b1 a2 b2 a3 b3, each with its turn

    Source: "Start-time Fair Queuing", Goyal, Vin, Cheng, SIGCOMM 1996, all costs being equal.
    """

    def __init__(self) -> None:
        self._line: list[Sequence] = []
        self._present_turn = 0
        self._last_turns: dict[tuple[bytes, int], int] = {}  # by tenant and priority, those not before the present

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._line)

    def __len__(self) -> int:
        return len(self._line)

    def __getitem__(self, index: int) -> Sequence:
        return self._line[index]

    def join(self, sequence: Sequence) -> None:
        """Puts a sequence behind all others of its priority and tenant, with that tenant's next turn."""
        key = (sequence.tenant, sequence.priority)
        sequence.turn = self._last_turns[key] = max(self._present_turn, self._last_turns.get(key, -1) + 1)
        behind = (index for index, other in enumerate(self._line) if _urgency(other) > _urgency(sequence))
        self._line.insert(next(behind, len(self._line)), sequence)

    def rejoin(self, sequence: Sequence) -> None:
        """Puts a sequence where its turn is, before whoever has the same and arrived later."""
        behind = (index for index, other in enumerate(self._line) if _place(other) > _place(sequence))
        self._line.insert(next(behind, len(self._line)), sequence)

    def take(self, index: int) -> Sequence:
        """Removes a sequence that is about to start, and counts it for the less urgent that arrived before it.

        priorities 9 0 0, arrived 3 1 2, take(0): the last two have been passed once more
        """
        taken = self._line.pop(index)
        if taken.turn > self._present_turn:
            self._present_turn = taken.turn
            self._last_turns = {key: turn for key, turn in self._last_turns.items() if turn >= taken.turn}
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
        urgencies = [_urgency(sequence) for sequence in self._line]
        assert urgencies == sorted(urgencies), "the less urgent stand in front, or somebody before his turn"


def _urgency(sequence: Sequence) -> tuple[int, int]:
    return -sequence.priority, sequence.turn


def _place(sequence: Sequence) -> tuple[int, int, int]:
    return -sequence.priority, sequence.turn, sequence.seq_id
