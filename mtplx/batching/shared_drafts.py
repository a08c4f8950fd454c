"""Drafts from two sources, row by row: a cohort's texts and the draft head; the longer expected run wins.

    index      t t t t t t      a run of its texts: costs nothing to make
    head       h h h            levels that the head computes
    both       h t t t t        the head's beginning, and the run that goes on behind it

How far each row goes is one choice over all of them, by one table of costs.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from mtplx.batching.cohorts import Cohorts
from mtplx.batching.depth import DepthPolicy
from mtplx.batching.drafting import DraftHead, Speculator
from mtplx.batching.sequences import SequenceTable
from mtplx.batching.speculation import MAX_DEPTH
from mtplx.batching.state import RowOutcome, Sequence, StepPlan
from mtplx.batching.suffix_index import Run

_NO_TEXT = "no text of a cohort goes on from here, and there is no draft head"
_TEXTS_REST = (
    "what the texts of a cohort had to say wasn't worth its place in the steps before, and there is no draft head"
)
_MOST_REST = 5  # steps in which the texts aren't asked, where their runs were no use in many before


@dataclass(frozen=True, slots=True)
class Draft:
    """Guesses for one row: `num_head` from the head, then those of `run`, with what is believed of each."""

    token_ids: tuple[int, ...] = ()
    survivals: tuple[float, ...] = ()
    num_head: int = 0
    run: Run | None = None

    @property
    def expected(self) -> float:
        """How many of them will be accepted, as is believed."""
        return sum(self.survivals)


class SharedSpeculator(Speculator):
    """Asks the index of each row's cohort first, then the head for those rows that it has more to say of.

    `max_depth` is the most that the head guesses; where there is none the index drafts alone.
    """

    def __init__(
        self, policy: DepthPolicy, cohorts: Cohorts, *, prefill_chunk_tokens: int, max_depth: int = MAX_DEPTH
    ) -> None:
        super().__init__(policy, prefill_chunk_tokens=prefill_chunk_tokens, max_depth=max_depth)
        self._cohorts = cohorts
        self._drafts: dict[int, Draft] = {}  # of the step in progress, by sequence
        self._num_lucky = policy.max_depth  # tokens of a run that will be used, by the step before
        self._num_useless = self._num_resting = 0  # steps in a row with runs and no draft; those until texts are asked

    def draft(
        self,
        table: SequenceTable,
        head: DraftHead | None,
        decoding: Seq[Sequence],
        prefilling: Seq[Sequence] = (),
        *,
        max_drafts: int | None = None,
    ) -> None:
        """As `Speculator.draft`, with drafts also where there is no head. All who run must be members of cohorts."""
        self._forget_gone(table)
        self._decoding, self._why_not = decoding, None
        self._find_forced(decoding, has_head=head is not None)
        offers = [self._offer(sequence, has_head=head is not None) for sequence in decoding]
        rests = self._num_resting > 0
        self._num_resting = max(0, self._num_resting - 1)
        rows = [self._row(sequence, offer.survivals, head) for sequence, offer in zip(decoding, offers, strict=True)]
        self._has_room = any(row.limit for row in rows)
        depths = self.policy.choose(rows, len(prefilling))
        asked = [0 if row.made else depth for row, depth in zip(rows, depths, strict=True)]
        if head is not None:
            budget = MAX_DEPTH * len(decoding) if max_drafts is None else max_drafts
            self._ask(table, head, decoding, asked, prefilling, budget)
        elif not any(row.made for row in rows) and any(self._reach(sequence) for sequence in decoding):
            self._why_not = _TEXTS_REST if rests else _NO_TEXT
        drafts = [
            offer if row.made else self._grown(sequence)
            for sequence, offer, row in zip(decoding, offers, rows, strict=True)
        ]
        depths = [min(depth, len(draft.token_ids)) for depth, draft in zip(depths, drafts, strict=True)]
        if any(draft.num_head and draft.run for draft in drafts):
            depths = self.policy.lengthen([draft.survivals for draft in drafts], depths)
        self._propose(table, decoding, drafts, depths, max_drafts)
        self._say_if_no_place(decoding, depths)
        self._rest(has_runs=any(row.made for row in rows), has_drafts=any(each.draft_ids for each in decoding))

    def _rest(self, *, has_runs: bool, has_drafts: bool) -> None:
        """Leaves the texts alone for some steps where often in a row what they had to say was not worth its place."""
        if has_drafts:
            self._num_useless = 0
        elif has_runs:
            self._num_useless += 1
            self._num_resting = min(_MOST_REST, self._num_useless // 4)

    def _offer(self, sequence: Sequence, *, has_head: bool) -> Draft:
        """What is forced, or the cohort's own run, unless more is expected of the head; nothing without either."""
        forced = self._forced.get(sequence.seq_id, ())
        if forced:
            return Draft(sequence.forced_ids[: len(forced)], forced)
        if self._num_resting:
            return Draft()
        limit = self._reach(sequence)
        run = self._cohorts.find(sequence, (), limit, num_lucky=self._num_lucky)
        if run is None:
            return Draft()
        survivals = self._cohorts.survivals(sequence, run)
        offer = Draft(run.token_ids[: len(survivals)], tuple(survivals), run=run)
        if offer.expected >= self._head_believed(sequence, has_head=has_head) and offer.token_ids:
            return offer
        self._cohorts.passed_over(sequence, run.match_len, 0)
        return Draft()

    def _grown(self, sequence: Sequence) -> Draft:
        """The head's guesses, or a beginning of them and a run of the cohort's texts behind it if that is longer."""
        guesses = tuple(sequence.draft_ids)
        if not guesses:
            return Draft()
        believed = tuple(self.policy.survivals(sequence.seq_id, len(guesses)))
        believed += (believed[-1] if believed else 0.0,) * (len(guesses) - len(believed))
        best = Draft(guesses, believed, len(guesses))
        limit = self._reach(sequence)
        for num_head in range(1, len(guesses) + 1):
            run = self._cohorts.find(sequence, guesses[:num_head], limit - num_head, num_lucky=self._num_lucky)
            if run is None:
                continue
            further = [believed[num_head - 1] * survival for survival in self._cohorts.survivals(sequence, run)]
            token_ids = (*guesses[:num_head], *run.token_ids[: len(further)])
            grown = Draft(token_ids, (*believed[:num_head], *further), num_head, run)
            best = grown if grown.expected > best.expected else best
        return best

    def _propose(
        self,
        table: SequenceTable,
        decoding: Seq[Sequence],
        drafts: Seq[Draft],
        depths: Seq[int],
        max_drafts: int | None,
    ) -> None:
        self._drafts = {}
        most_used = 0
        budget = MAX_DEPTH * len(decoding) if max_drafts is None else max_drafts
        for sequence, draft, depth in zip(decoding, drafts, depths, strict=True):
            table.propose(sequence, draft.token_ids[: min(depth, budget)])
            self._drafts[sequence.seq_id] = draft
            budget -= len(sequence.draft_ids)
            num_used = max(0, len(sequence.draft_ids) - draft.num_head)
            most_used = max(most_used, num_used)
            if draft.run and num_used < len(draft.run.token_ids):
                self._cohorts.passed_over(sequence, draft.run.match_len, num_used)
        self._num_lucky = 1 + most_used

    def commit(self, plan: StepPlan, outcomes: Seq[RowOutcome], table: SequenceTable) -> None:
        """As `Speculator.commit`; the cohorts also hear what else might have come."""
        super().commit(plan, outcomes, table)
        for row, outcome in zip(plan.rows, outcomes, strict=True):
            if outcome.likely:
                self._cohorts.heard(row.seq_id, row.end - row.num_drafts, outcome.likely)

    def _verified(self, sequence: Sequence, num_drafts: int, num_accepted: int) -> None:
        """Each source learns from its own drafts: the index from those that the head's were right before."""
        if sequence.seq_id in self._forced:
            super()._verified(sequence, num_drafts, num_accepted)
            return
        draft = self._drafts[sequence.seq_id]
        num_head = min(num_drafts, draft.num_head)
        if num_head:
            self._cohorts.head_counts.count(num_head, min(num_head, num_accepted))
            super()._verified(sequence, num_head, min(num_head, num_accepted))
        if num_drafts > num_head:
            num_right = max(0, num_accepted - num_head)
            self._cohorts.index_counts.count(num_drafts - num_head, num_right)
            if draft.run and num_accepted >= num_head:
                self._cohorts.verified(sequence, draft.run.match_len, num_drafts - num_head, num_right)
