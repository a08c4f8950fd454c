"""Who shares drafts with whom: cohorts of requests that begin alike or name each other, each with an index of texts.

Knows sequences and their tokens; doesn't know what drafts cost, nor who else makes some. Requests of different salts
(an API key's tenant and the request's own salt) are never in one cohort.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

from mtplx.batching.acceptance import AcceptanceBook
from mtplx.batching.sequences import SequenceTable
from mtplx.batching.state import Likely, Sequence
from mtplx.batching.suffix_index import MAX_MATCH, Run, SuffixIndex

COMMON_TOKENS = 32
"""That requests must have in common to be of one cohort, beyond what the chat template writes before every message."""

MAX_IDLE = 64
"""Cohorts that are remembered without a member."""

Luck = Callable[[int, int, Likely], int]
"""Which of a few ids a sequence would draw at a position, if these were all that could come there."""


@dataclass(slots=True)
class SourceCounts:
    """Drafts of one source that were verified, and how many of them were right."""

    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    def count(self, num_drafts: int, num_accepted: int) -> None:
        self.num_draft_tokens += num_drafts
        self.num_accepted_tokens += num_accepted


@dataclass(frozen=True, slots=True)
class CohortKey:
    """What is equal for all members: the salt, and the name that they gave or else how they begin."""

    cache_salt: bytes
    name: bytes = b""
    prefix: tuple[int, ...] = ()
    seq_id: int | None = None  # of a request that can share with nobody


@dataclass(slots=True)
class Cohort:
    """The texts of its members, past ones too, as far as the index remembers them."""

    key: CohortKey
    index: SuffixIndex = field(default_factory=SuffixIndex)
    num_members: int = 0  # now
    num_joined: int = 0  # ever
    prompt: list[int] = field(default_factory=list)  # of the last who joined,
    path: list[int] = field(default_factory=list)  # and where its tokens are in the index

    @property
    def is_shared(self) -> bool:
        return self.num_joined > 1

    def add_prompt(self, prompt: list[int]) -> int:
        """Adds what the last prompt doesn't begin with, and returns the position of its last token."""
        num_common = _num_common(prompt, self.prompt)
        if num_common and self.path[0] < self.index.oldest:
            num_common = 0
        begin = self.index.end
        end = self.index.append(self.path[num_common - 1] if num_common else 0, prompt[num_common:])
        self.path[num_common:] = range(begin, self.index.end)
        self.prompt = prompt
        return end


@dataclass(slots=True)
class Member:
    sequence: Sequence
    cohort: Cohort
    end: int  # the position of its last token in the index
    num_indexed: int  # of its tokens
    likely: dict[int, Likely] = field(default_factory=dict)  # by position, of tokens that aren't in the index yet


@dataclass(frozen=True, slots=True)
class CohortStatus:
    """The cohorts of two or more requests, past ones counted, and what they have brought."""

    num_cohorts: int = 0  # that have a member now
    num_members: int = 0  # in those
    num_saved_tokens: int = 0  # that members took over computed, since the start
    num_indexes: int = 0  # all there are, also of cohorts of one and of those that wait for new members
    index_bytes: int = 0
    head: SourceCounts = field(default_factory=SourceCounts)
    index: SourceCounts = field(default_factory=SourceCounts)


class Cohorts:
    """All cohorts of one scheduler. `template_ids` is what the chat template writes before every first message.

    Invariants, which `check` asserts: each member's cohort is the one of its key and counts it; no more than MAX_IDLE
    cohorts have no member, and none of those is of a single request.
    """

    def __init__(self, template_ids: Seq[int] = ()) -> None:
        self.head_counts = SourceCounts()
        self.index_counts = SourceCounts()
        self._template_ids = tuple(template_ids)
        self._members: dict[int, Member] = {}
        self._cohorts: dict[CohortKey, Cohort] = {}  # the one joined longest ago first
        self._books: tuple[AcceptanceBook[CohortKey], ...] = tuple(AcceptanceBook() for _ in range(1 + len(_CLASSES)))
        self._num_saved_tokens = 0  # by members that have left
        self._luck: Luck | None = None

    def use_luck(self, luck: Luck) -> None:
        """Lets runs go where a request's own noise would lead it, of the ways that the others might have gone."""
        self._luck = luck

    def sync(self, table: SequenceTable) -> None:
        """Lets in who runs and isn't a member, adds what members have said since, and lets go of who has ended."""
        for member in list(self._members.values()):
            self._index_news(member)
            if table.get(member.sequence.seq_id) is not member.sequence:
                self._leave(member)
        for sequence in table.running:
            if sequence.seq_id not in self._members:
                self._join(sequence)

    def find(self, sequence: Sequence, guesses: Seq[int], max_tokens: int, *, num_lucky: int = MAX_MATCH) -> Run | None:
        """What the texts of a member's cohort go on with after its tokens and `guesses`; it ends before the answer.

        The first `num_lucky` tokens go where luck leads; it takes time, so it isn't asked of those that won't be used.
        """
        tail = [*sequence.token_ids[-MAX_MATCH:], *guesses][-MAX_MATCH:]
        position, luck = len(sequence.token_ids) + len(guesses), self._luck

        def choose(offset: int, likely: Likely) -> int | None:
            return luck(sequence.seq_id, position + offset, likely) if luck and offset < num_lucky else None

        run = self._members[sequence.seq_id].cohort.index.find(tail, max_tokens, choose if luck else None)
        if run is None:
            return None
        token_ids = _before_end(run.token_ids, sequence.stops.stop_ids)
        return Run(token_ids, run.match_len) if token_ids else None

    def survivals(self, sequence: Sequence, run: Run) -> list[float]:
        """For each token of a run the probability that it is accepted with all before it, as far as it's worth while.

        What is known of runs of such a match in this cohort counts most, then of all runs of such a match.
        """
        book = self._books[_class_of(run.match_len)]
        return book.survivals(self._members[sequence.seq_id].cohort.key, len(run.token_ids))

    def heard(self, seq_id: int, position: int, likely: Seq[Likely]) -> None:
        """Hears what else might have come in place of a member's newest tokens, the first of them at `position`."""
        if seq_id in self._members:
            self._members[seq_id].likely.update(enumerate(likely, start=position))

    def verified(self, sequence: Sequence, match_len: int, num_drafts: int, num_accepted: int) -> None:
        """Learns from drafts of a run."""
        key = self._members[sequence.seq_id].cohort.key
        self._books[_class_of(match_len)].verified(key, num_drafts, num_accepted)

    def passed_over(self, sequence: Sequence, match_len: int, num_used: int) -> None:
        """Hears that of a run only so many drafts were of use; in time the others are tried again."""
        book = self._books[_class_of(match_len)]
        book.fade(self._members[sequence.seq_id].cohort.key, num_used)
        book.fade_common(num_used)

    def status(self) -> CohortStatus:
        members = [member for member in self._members.values() if member.cohort.is_shared]
        return CohortStatus(
            num_cohorts=len({id(member.cohort) for member in members}),
            num_members=len(members),
            num_saved_tokens=self._num_saved_tokens + sum(member.sequence.num_saved for member in members),
            num_indexes=len(self._cohorts),
            index_bytes=sum(cohort.index.num_bytes for cohort in self._cohorts.values()),
            head=replace(self.head_counts),
            index=replace(self.index_counts),
        )

    def check(self) -> None:
        """Asserts the invariants."""
        for key, cohort in self._cohorts.items():
            assert cohort.key == key
            assert cohort.num_members == sum(member.cohort is cohort for member in self._members.values())
            assert cohort.num_members or key.seq_id is None, "a cohort of one has outlived it"
        for member in self._members.values():
            assert self._cohorts[self._key_of(member.sequence)] is member.cohort
            assert member.num_indexed <= len(member.sequence.token_ids)
        assert sum(not cohort.num_members for cohort in self._cohorts.values()) <= MAX_IDLE

    def _join(self, sequence: Sequence) -> None:
        key = self._key_of(sequence)
        cohort = self._cohorts.pop(key, None) or Cohort(key)
        self._cohorts[key] = cohort
        cohort.num_members += 1
        cohort.num_joined += 1
        end = cohort.add_prompt(sequence.token_ids[: sequence.prompt_len])
        member = Member(sequence, cohort, end, sequence.prompt_len)
        self._members[sequence.seq_id] = member
        self._index_news(member)
        self._drop_idle()

    def _leave(self, member: Member) -> None:
        del self._members[member.sequence.seq_id]
        member.cohort.num_members -= 1
        if member.cohort.is_shared:
            self._num_saved_tokens += member.sequence.num_saved
        if member.cohort.key.seq_id is not None:
            self._drop(member.cohort)
        self._drop_idle()

    def _drop_idle(self) -> None:
        idle = [cohort for cohort in self._cohorts.values() if not cohort.num_members]
        for cohort in idle[: max(0, len(idle) - MAX_IDLE)]:
            self._drop(cohort)

    def _drop(self, cohort: Cohort) -> None:
        del self._cohorts[cohort.key]
        for book in self._books:
            book.forget(cohort.key)

    def _index_news(self, member: Member) -> None:
        token_ids = member.sequence.token_ids
        if len(token_ids) > member.num_indexed:
            likely = [member.likely.pop(position, None) for position in range(member.num_indexed, len(token_ids))]
            member.end = member.cohort.index.append(member.end, token_ids[member.num_indexed :], likely)
            member.num_indexed = len(token_ids)

    def _key_of(self, sequence: Sequence) -> CohortKey:
        """Two prompts have equal ones if they go on alike for COMMON_TOKENS where they leave the template's own."""
        salt, prompt_len = sequence.cache_salt, sequence.prompt_len
        if sequence.cohort:
            return CohortKey(salt, name=sequence.cohort)
        end = COMMON_TOKENS + _num_common(sequence.token_ids[:prompt_len], self._template_ids)
        if prompt_len < end:
            return CohortKey(salt, seq_id=sequence.seq_id)
        return CohortKey(salt, prefix=tuple(sequence.token_ids[:end]))


_CLASSES = (3, 4, 8, 16)  # tokens of a match from which on a run is judged by others; shorter ones by themselves


def _class_of(match_len: int) -> int:
    return bisect_right(_CLASSES, match_len)


def _num_common(one: Seq[int], other: Seq[int]) -> int:
    """How many tokens both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (mine, yours) in pairs if mine != yours), min(len(one), len(other)))


def _before_end(token_ids: tuple[int, ...], stop_ids: frozenset[int]) -> tuple[int, ...]:
    """Where an answer ends the model says so without a draft: that token is the bonus of those before it."""
    if stop_ids.isdisjoint(token_ids):
        return token_ids
    return token_ids[: next(index for index, token_id in enumerate(token_ids) if token_id in stop_ids)]
