"""All live sequences and the only code that moves them: in, admitted, preempted, one step further, out.

Knows blocks and counters; doesn't know which mode asks, nor what a token means. Sequences that begin alike share the
blocks of their beginning, by way of the prefix cache; each is a holder then.

                 admit                     commit: stop, length, error
    add -> waiting -------> running ------------------------------------> gone
              ^                |          cancel, fail: from either state
              +--- preempt ----+
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from itertools import islice

from mtplx.batching.admission import MAX_OVERTAKEN, Room, entries_to_start, max_entries, next_to_admit
from mtplx.batching.blocks import BlockAllocator
from mtplx.batching.line import WaitingLine
from mtplx.batching.prefix import PrefixCache
from mtplx.batching.rows import apply_outcome, next_row
from mtplx.batching.state import (
    DraftRequest,
    FinishReason,
    Row,
    RowOutcome,
    Sequence,
    SequenceEvent,
    SequenceStatus,
    StepPlan,
)


class SequenceTable:
    """Owns the live sequences and their blocks.

    Invariants, which `check` asserts: each sequence is in exactly one of `waiting` and `running`, as its status says; a
    waiting one holds no blocks and has nothing computed; a running one holds the blocks of its computed tokens at
    least and has a token pending; a block's holders are exactly the sequences that name it.

    Of those of the highest priority in `running` the first is never preempted for want of blocks, so some sequence
    always gets to its end. Without `prefix` nothing is shared.
    """

    def __init__(
        self, blocks: BlockAllocator, prefix: PrefixCache | None = None, *, max_overtaken: int = MAX_OVERTAKEN
    ) -> None:
        self.blocks = blocks
        self.prefix = prefix or PrefixCache(blocks, is_on=False)
        self._max_overtaken = max_overtaken
        self._by_id: dict[int, Sequence] = {}
        self._waiting = WaitingLine()
        self._running: list[Sequence] = []
        self._num_preemptions = 0

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        """A snapshot; the head of the line first."""
        return tuple(self._waiting)

    @property
    def running(self) -> tuple[Sequence, ...]:
        """A snapshot in the order of admission."""
        return tuple(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_preemptions(self) -> int:
        """Preemptions since the start, of whatever cause."""
        return self._num_preemptions

    @property
    def is_empty(self) -> bool:
        return not self._by_id

    def get(self, seq_id: int) -> Sequence | None:
        return self._by_id.get(seq_id)

    def could_hold(self, prompt_len: int, max_tokens: int) -> bool:
        """Whether such a sequence fits when it has the cache to itself; the server refuses the others."""
        return self.blocks.blocks_for(prompt_len + max(1, max_tokens) - 1) <= self.blocks.num_total

    # In and out

    def add(self, sequence: Sequence) -> None:
        """Puts a new sequence in the line, behind all of its priority.

        Raises:
            AssertionError: its id is taken, its prompt is empty, it isn't new, or it could never fit.
        """
        assert sequence.seq_id not in self._by_id, f"sequence {sequence.seq_id} is already here"
        assert 0 < sequence.prompt_len == len(sequence.token_ids), "a new sequence has a prompt and nothing emitted"
        assert sequence.status is SequenceStatus.WAITING
        assert not sequence.block_ids
        assert self.could_hold(sequence.prompt_len, sequence.stops.max_tokens), "could_hold must be asked before"
        self._by_id[sequence.seq_id] = sequence
        self._waiting.join(sequence)

    def cancel(self, seq_id: int) -> bool:
        """Removes a sequence in any state and frees its blocks at once; False when there is none of that id."""
        sequence = self._by_id.get(seq_id)
        if sequence is None:
            return False
        self._remove(sequence)
        return True

    def fail(self, seq_ids: Iterable[int], message: str) -> list[SequenceEvent]:
        """Ends these sequences with an error and returns their last events; unknown ids are skipped."""
        events = []
        for seq_id in seq_ids:
            if self.cancel(seq_id):
                events.append(SequenceEvent(seq_id, (), FinishReason.ERROR, message))
        return events

    # What modes build a plan from

    def admit(self, max_running: int) -> list[Sequence]:
        """Starts waiting sequences that fit, up to `max_running` running, and returns them in that order.

        Each gets blocks for all its tokens and one more, shared ones for a beginning that is computed already. One may
        pass others that don't fit, within their patience.
        """
        admitted = []
        while self._waiting and self.num_running < max_running:
            index = next_to_admit(self._waiting, self._room(), self._max_overtaken)
            if index is None:
                break
            if self._blocks_to_start(self._waiting[index]) > self._num_spare():
                self._take_back_surplus()
            for passed in islice(self._waiting, index):
                passed.num_overtaken = min(passed.num_overtaken + 1, self._max_overtaken)
            sequence = self._waiting.take(index)
            self._start(sequence)
            admitted.append(sequence)
        return admitted

    def reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        """Gives a running sequence the blocks of its next `num_tokens` tokens; False, and none, if too few are free."""
        missing = self.blocks.blocks_for(sequence.num_computed + num_tokens) - len(sequence.block_ids)
        if missing > self.blocks.num_free:
            return False
        if missing > 0:
            sequence.block_ids.extend(self.blocks.allocate(missing))
        return True

    def secure_next_tokens(self) -> None:
        """Gives every running sequence room for its next token, the most urgent first and the first admitted of these.

        While blocks are short, first the blocks that were taken for drafts come back, then the sequence admitted last
        of those with the lowest priority is preempted. It goes back to the front of its priority, in order of arrival,
        and is computed again later; its answer can't change, only its pace. Before all that, prompts go on behind what
        others have computed of them.
        """
        for sequence in self._running:
            self._share_ahead(sequence)
        for sequence in sorted(self._running, key=lambda running: -running.priority):
            while sequence.status is SequenceStatus.RUNNING and not self.reserve(sequence, 1):
                if self._take_back_surplus():
                    continue
                assert self.num_running > 1, f"sequence {sequence.seq_id} doesn't fit alone"
                self.preempt(min(reversed(self._running), key=lambda running: running.priority))

    def reserve_drafts(self, sequence: Sequence, depth: int) -> int:
        """Returns for how many of `depth` drafts after its pending token a decoding sequence now has blocks.

        Takes only blocks that no running sequence needs for its next token: drafts never cause a preemption.
        """
        assert sequence.is_decoding
        missing = self.blocks.blocks_for(sequence.num_computed + 1 + depth) - len(sequence.block_ids)
        if missing > 0:
            sequence.block_ids.extend(self.blocks.allocate(max(0, min(missing, self._num_spare()))))
        return min(depth, len(sequence.block_ids) * self.blocks.block_size - sequence.num_computed - 1)

    def set_drafts(self, request: DraftRequest, draft_ids: Seq[int]) -> None:
        """Takes what a draft head did for a running sequence: slots it built, and guesses for the next row."""
        sequence = self._by_id[request.seq_id]
        assert sequence.status is SequenceStatus.RUNNING
        assert len(draft_ids) <= request.depth, "more drafts than were asked for"
        sequence.num_primed = max(sequence.num_primed, request.end)
        self.prefix.built(sequence, request.start)
        sequence.draft_ids = list(draft_ids)

    def propose(self, sequence: Sequence, draft_ids: Seq[int]) -> None:
        """Gives a decoding sequence guesses for the next row, whoever made them, as far as it has blocks for them."""
        sequence.draft_ids = list(draft_ids[: self.reserve_drafts(sequence, len(draft_ids))])

    def preempt(self, sequence: Sequence) -> None:
        """Sends a running sequence back to the line, before those that arrived later; its tokens are kept."""
        self._stop_running(sequence)
        self._waiting.rejoin(sequence)

    def make_way(self, max_running: int, candidates: Iterable[Sequence]) -> list[Sequence]:
        """Preempts as many candidates, in their order, as the head of the line needs to start, and returns them.

        They are no more urgent than the head, and go to the end of their priority, or they would take back at once
        what they gave. If all of them wouldn't do, nobody is preempted. The next `admit` starts the head.
        """
        num_spare = self._num_spare()
        released: Counter[int] = Counter()
        victims: list[Sequence] = []
        for candidate in candidates:
            assert candidate.priority <= self._waiting[0].priority
            victims.append(candidate)
            released.update(candidate.block_ids)
            num_spare += self._can_grow(candidate)
            num_freed = sum(self.blocks.num_holds(block_id) == num for block_id, num in released.items())
            num_needed = self._blocks_to_start(self._waiting[0], released)
            if num_needed <= num_spare + num_freed and self.num_running - len(victims) < max_running:
                break
        else:
            return []
        for victim in victims:
            self._stop_running(victim)
            self._waiting.join(victim)
        return victims

    def row(self, sequence: Sequence, max_tokens: int) -> Row:
        """Returns the next row of a running sequence: up to `max_tokens` pending tokens and drafts in its blocks."""
        assert sequence.status is SequenceStatus.RUNNING
        return next_row(sequence, max_tokens, self.blocks.block_size)

    # What came of a plan

    def commit(self, plan: StepPlan, outcomes: Seq[RowOutcome]) -> list[SequenceEvent]:
        """Applies one outcome a row and returns an event for every sequence that got tokens or ended.

        A sequence that was cancelled or failed since the plan was made is skipped. Whoever ends gives its blocks back
        here and now.

        Raises:
            AssertionError: the plan is stale, or an outcome doesn't belong to its row.
        """
        events = []
        for row, outcome in zip(plan.rows, outcomes, strict=True):
            sequence = self._by_id.get(row.seq_id)
            if sequence is None:
                continue
            assert sequence.status is SequenceStatus.RUNNING
            was_decoding = sequence.is_decoding
            event = apply_outcome(sequence, row, outcome)
            if outcome.error is None:
                self.prefix.publish(sequence)
            else:
                self.prefix.forget(sequence.block_ids)  # whatever broke it may be in its cache
            if event is None:
                continue
            events.append(event)
            if event.finish_reason is not None:
                self._remove(sequence)
            elif not was_decoding:
                self._join_line(sequence)
        return events

    def check(self) -> None:
        """Asserts the invariants of the table and of its blocks."""
        live = [*self._waiting, *self._running]
        assert sorted(sequence.seq_id for sequence in live) == sorted(self._by_id), "a sequence is lost, or here twice"
        self._waiting.check()
        for sequence in self._waiting:
            assert sequence.status is SequenceStatus.WAITING
            assert not sequence.block_ids, f"waiting sequence {sequence.seq_id} holds blocks"
            assert sequence.num_computed == sequence.num_primed == sequence.num_published == 0
        for sequence in self._running:
            assert sequence.status is SequenceStatus.RUNNING
            assert 0 <= sequence.num_computed < len(sequence.token_ids)
            assert self.blocks.blocks_for(sequence.num_computed) <= len(sequence.block_ids)
            assert sequence.num_primed <= sequence.num_computed + 1, "the head is ahead of the model"
            assert sequence.num_published * self.blocks.block_size <= sequence.num_computed
        for sequence in live:
            assert 0 <= sequence.num_emitted < max(1, sequence.stops.max_tokens)
            assert 0 <= sequence.num_unscored < sequence.prompt_len
            assert 0 <= sequence.num_overtaken <= self._max_overtaken
        self.blocks.check(block_id for sequence in live for block_id in sequence.block_ids)
        self.prefix.check()

    # Helpers

    def _room(self) -> Room:
        return Room(
            self._num_spare_at_most(),
            self.blocks.num_total,
            self._running,
            self.blocks.blocks_for,
            self.prefix.num_held,
        )

    def _blocks_to_start(self, sequence: Sequence, released: Counter[int] | None = None) -> int:
        """Free blocks that a start takes, once that many holders have let go of each `released` block."""
        return self.blocks.blocks_for(entries_to_start(sequence)) - self.prefix.num_held(sequence, released)

    def _num_spare(self) -> int:
        """Blocks that a newcomer may take: the free ones, less one for each running sequence that can still grow."""
        return self.blocks.num_free - sum(self._can_grow(sequence) for sequence in self._running)

    def _can_grow(self, sequence: Sequence) -> bool:
        return self.blocks.blocks_for(max_entries(sequence)) > len(sequence.block_ids)

    def _num_spare_at_most(self) -> int:
        """What `_num_spare` would be if the surplus were taken back."""
        num_spare = self.blocks.num_free
        for sequence in self._running:
            num_needed = self._num_needed(sequence)
            num_spare += len(sequence.block_ids) - num_needed
            num_spare -= self.blocks.blocks_for(max_entries(sequence)) > num_needed
        return num_spare

    def _take_back_surplus(self) -> bool:
        """Frees what sequences hold beyond their need; False if there was nothing. Drafts to verify get shorter."""
        num_free = self.blocks.num_free
        for sequence in self._running:
            num_needed = self._num_needed(sequence)
            self.blocks.free(sequence.block_ids[num_needed:])
            del sequence.block_ids[num_needed:]
        return self.blocks.num_free > num_free

    def _num_needed(self, sequence: Sequence) -> int:
        """The blocks that are no surplus: up to its next token, and before it decodes what admission promised."""
        num_entries = len(sequence.token_ids) if sequence.is_decoding else entries_to_start(sequence)
        return min(len(sequence.block_ids), self.blocks.blocks_for(num_entries))

    def _share_ahead(self, sequence: Sequence) -> None:
        """Takes over what others have computed of a running sequence's prompt, and built of its head slots."""
        was_decoding = sequence.is_decoding
        self.prefix.share(sequence)
        self.prefix.catch_up(sequence)
        if sequence.is_decoding and not was_decoding:
            self._join_line(sequence)

    def _start(self, sequence: Sequence) -> None:
        self.prefix.query(sequence)
        num_missing = self.blocks.blocks_for(entries_to_start(sequence)) - len(sequence.block_ids)
        sequence.block_ids.extend(self.blocks.allocate(num_missing))
        sequence.status = SequenceStatus.RUNNING
        sequence.admitted_len = len(sequence.token_ids)
        self._running.append(sequence)
        self._join_line(sequence)

    def _join_line(self, sequence: Sequence) -> None:
        """Puts it one turn behind the least served of those it competes with: all that prefill, or all that decode.

        From zero it would be served alone until it had caught up. Level with the least, an endless row of newcomers
        would hold the least down, and whoever is a turn ahead would never be served again.
        """
        rivals = (other for other in self._running if other.is_decoding == sequence.is_decoding)
        turns = [other.num_served for other in rivals if other is not sequence]
        sequence.num_served = 1 + min(turns) if turns else 0

    def _stop_running(self, sequence: Sequence) -> None:
        assert sequence.status is SequenceStatus.RUNNING
        self._running.remove(sequence)
        self._release(sequence)
        sequence.status = SequenceStatus.WAITING
        sequence.num_computed = 0
        sequence.num_primed = 0
        sequence.num_published = 0
        sequence.num_preempted += 1
        self._num_preemptions += 1

    def _remove(self, sequence: Sequence) -> None:
        if sequence.status is SequenceStatus.WAITING:
            self._waiting.remove(sequence)
        else:
            self._running.remove(sequence)
        self._release(sequence)
        sequence.status = SequenceStatus.FINISHED
        del self._by_id[sequence.seq_id]

    def _release(self, sequence: Sequence) -> None:
        self.blocks.free(reversed(sequence.block_ids))  # a prefix is of use without its end, not the other way round
        sequence.block_ids = []
        sequence.draft_ids = []
