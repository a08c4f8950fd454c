"""Policies for the draft depth of each row of a step: a fixed one, and one that follows acceptance and cost."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from mtplx.batching.acceptance import AcceptanceBook
from mtplx.batching.speculation import MAX_DEPTH, Costs, DraftCost, choose_depths, emitted_of, rate_of, seconds_of

PROBE_SHARE = 0.005
"""The most of the time that may go into drafts which the costs speak against, made to see whether they still do."""

PROBE_SHARE_OF_NONE = 0.0025
"""The same for steps without drafts where the costs speak for some."""

_LEAST_COST = 0.05  # of a step, that a probe is taken to cost: so probes stay rare where the costs are wrong,
_LEAST_GAIN = 0.2  # and that drafts are taken to gain where steps go without: so these stay rare where it is little
_FIRST_COST = 0.5  # of a step, that each of the first probe's may cost: it need not be saved up
_RUN = 6  # steps of a probe that goes from no drafts to some, or back: the first few find the others' caches
_CHANGE = 3  # steps behind a change that are not heard
_HORIZON = 64  # steps in which they must save what it takes to build the head's cache up to where they begin
_MOST_REST = 15  # steps with the same depths for the same rows before they are thought over again,
_MOST_REST_DRAFTING = 12  # where there are drafts divided by the rows: of many there is soon something to learn
_SETTLED = 8  # steps of a kind in a row; from then on
_HEARD = 4  # one of so many corrects the costs
_MOST_UNLEARNED = 64  # steps that were heard
_LOOKED_AHEAD = 2  # drafts of each row, when it is asked whether there will be any
_NOBODY = -1  # a seq_id of which nothing is known
_FADING = 6  # steps for which what is known of positions without drafts fades at once


@dataclass(frozen=True, slots=True)
class DraftRow:
    """A sequence that decodes in the step: how many drafts it may have, and how many head slots it is behind.

    `made` are the survivals of drafts that are there already, at most `limit`; the head isn't asked for such a row.
    """

    seq_id: int
    limit: int
    num_unprimed: int
    made: tuple[float, ...] = ()


class DepthPolicy(Protocol):
    """Decides depths, and hears what came of them. Deterministic in what it has heard."""

    def expects_drafts(self, num_rows: int) -> bool:
        """Whether there will be drafts once so many sequences decode, so that their heads may as well be built now."""
        ...

    @property
    def costs(self) -> Costs | None:
        """What it believes that steps cost; None if it doesn't ask."""
        ...

    @property
    def max_depth(self) -> int:
        """The most drafts that it ever chooses for a row."""
        ...

    def survivals(self, seq_id: int, limit: int) -> list[float]:
        """What it believes of the head's first `limit` drafts of a sequence: that each survives."""
        ...

    def kept(self, seq_ids: Seq[int]) -> Seq[int] | None:
        """Depths for a step of these sequences alone that nothing speaks against; None says to ask `choose`."""
        ...

    def choose(self, rows: Seq[DraftRow], num_joining: int) -> list[int]:
        """A depth for each row, at most its limit; so many other sequences compute their prompts meanwhile."""
        ...

    def lengthen(self, rows: Seq[Seq[float]], depths: Seq[int]) -> list[int]:
        """Depths for the same rows when all drafts are made, and perhaps more than were asked for; none gets less."""
        ...

    def why_none(self) -> str:
        """Why it chose no drafts though there was room for some, one sentence."""
        ...

    def verified(self, seq_id: int, num_drafts: int, num_accepted: int) -> None: ...

    def stepped(self, num_tokens: int, seconds: float) -> None: ...

    def drafted(self, num_levels: int, num_tokens: int, seconds: float) -> None: ...

    def forget(self, seq_id: int) -> None: ...


class FixedDepth:
    """The same depth for every row, whatever it costs."""

    costs: Costs | None = None

    def __init__(self, depth: int) -> None:
        assert depth >= 0
        self._depth = depth
        self._book: AcceptanceBook[int] = AcceptanceBook()

    @property
    def max_depth(self) -> int:
        return self._depth

    def expects_drafts(self, num_rows: int) -> bool:
        return self._depth > 0

    def survivals(self, seq_id: int, limit: int) -> list[float]:
        return self._book.survivals(seq_id, min(limit, self._depth))

    def kept(self, seq_ids: Seq[int]) -> Seq[int] | None:
        return [self._depth] * len(seq_ids)

    def choose(self, rows: Seq[DraftRow], num_joining: int) -> list[int]:
        return [min(self._depth, len(row.made) or row.limit) for row in rows]

    def lengthen(self, rows: Seq[Seq[float]], depths: Seq[int]) -> list[int]:
        return [max(depth, min(self._depth, len(row))) for row, depth in zip(rows, depths, strict=True)]

    def why_none(self) -> str:
        return "the draft depth is set to 0" if self._depth == 0 else "there was no place for drafts in the step"

    def verified(self, seq_id: int, num_drafts: int, num_accepted: int) -> None:
        self._book.verified(seq_id, num_drafts, num_accepted)

    def stepped(self, num_tokens: int, seconds: float) -> None: ...

    def drafted(self, num_levels: int, num_tokens: int, seconds: float) -> None: ...

    def forget(self, seq_id: int) -> None:
        self._book.forget(seq_id)


@dataclass(slots=True)
class _Probe:
    """Saves up a share of the time for runs of steps that the costs speak against."""

    share: float
    saved_s: float = 0.0
    num_left: int = 0  # steps of the run in progress

    def save(self, seconds: float) -> None:
        self.saved_s += self.share * seconds

    def can_pay(self, least_s: float, num_steps: int) -> bool:
        """Whether it may be due if a step costs so much at least."""
        return self.num_left > 0 or self.saved_s >= num_steps * least_s

    def is_due(self, cost_s: float, num_steps: int) -> bool:
        """Whether a step is made for its sake: one of a run in progress, or the first of one that can be paid for."""
        if self.num_left == 0:
            if self.saved_s < num_steps * cost_s:
                return False
            self.saved_s, self.num_left = 0.0, num_steps  # all of it, so there are no bursts
        self.num_left -= 1
        return True


class AdaptiveDepth:
    """The depths that promise the most tokens a second, from running acceptance and measured costs.

    It never decides for good: from `PROBE_SHARE` of the time it saves up for a probe, which is one draft more than
    chosen in the row that was probed longest ago, or one for each row where none were; and from `PROBE_SHARE_OF_NONE`
    for steps without drafts where some were chosen, since nothing else says what these cost.
    """

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._book: AcceptanceBook[int] = AcceptanceBook()
        self._more, self._none = _Probe(PROBE_SHARE), _Probe(PROBE_SHARE_OF_NONE)
        self._verified: list[tuple[int, int, int]] = []  # heard and not yet learned from, as the methods were told
        self._drafted: list[tuple[int, int, float]] = []
        self._stepped: list[tuple[int, float, bool]] = []
        self._probed_at: dict[int, int] = {}  # by seq_id, in probes
        self._num_probes = 0
        self._is_asked = self._was_asked = False  # the head, for this step and the one before
        self._num_alike = 0  # steps before this one that were of its kind
        self._has_joining = False  # whether somebody's prompt is computed in this step, which is of no kind then
        self._is_probe = False  # whether this step has other depths than were best
        self._is_trial = False
        self._expected: dict[int, bool] = {}  # drafts, by the number of rows, as far as anybody asked since it learned
        self._depths: dict[int, int] = {}  # by seq_id, as they were last thought over,
        self._num_rested = self._rest = 0  # the steps since, and those until they are thought over again
        self._num_unfaded = 0  # steps for which nothing has faded yet

    @property
    def costs(self) -> Costs:
        return self._costs

    @property
    def max_depth(self) -> int:
        return MAX_DEPTH

    @property
    def num_probes(self) -> int:
        return self._num_probes

    def expects_drafts(self, num_rows: int) -> bool:
        if num_rows not in self._expected:
            rows = [self._book.survivals(_NOBODY, _LOOKED_AHEAD)] * num_rows
            self._expected[num_rows] = any(choose_depths(rows, self._costs))
        return self._expected[num_rows]

    def survivals(self, seq_id: int, limit: int) -> list[float]:
        self._learn()
        return self._book.survivals(seq_id, limit)

    def kept(self, seq_ids: Seq[int]) -> Seq[int] | None:
        if not self._is_rest_of(seq_ids):
            return None
        self._begin_step()
        self._num_rested += 1
        return list(self._depths.values())

    def choose(self, rows: Seq[DraftRow], num_joining: int) -> list[int]:
        """Beside prompts depths are those that are best without them, or none if there will be none with the joiners.

        What a draft gains is worth what it is in the steps around, and a head's cache is dear to build.
        """
        if num_joining:
            self._has_joining, self._is_probe, self._is_trial = True, False, False
        else:
            self._begin_step()
        if not rows:
            return []
        may_ask = not num_joining or self.expects_drafts(len(rows) + num_joining)
        if self._rests(rows):
            self._num_rested += 1
            return [min(self._depths[row.seq_id], row.limit) if may_ask else 0 for row in rows]
        self._learn()
        row_survivals = [row.made or (self._book.survivals(row.seq_id, row.limit) if may_ask else ()) for row in rows]
        depths = choose_depths(row_survivals, self._costs, [bool(row.made) for row in rows])
        if any(depths) and not self._pays_to_begin(rows, row_survivals, depths):
            depths = [0] * len(rows)
        if num_joining:
            return depths
        self._fade(rows, depths)
        self._save((1 + self._num_rested) * self._seconds_of(rows, depths))
        self._keep({row.seq_id: depth for row, depth in zip(rows, depths, strict=True) if not row.made})
        if any(depths) and self._tries_none(rows, row_survivals, depths):
            self._is_probe = self._is_trial = True
            return [0] * len(rows)
        return self._probed(rows, row_survivals, depths)

    def lengthen(self, rows: Seq[Seq[float]], depths: Seq[int]) -> list[int]:
        made = Costs(self._costs.after_draft or self._costs.step, DraftCost())
        best = choose_depths(rows, made, [True] * len(rows))
        return [max(pair) for pair in zip(depths, best, strict=True)]

    def why_none(self) -> str:
        if self._is_trial:
            return "drafts pay; this is one of the few steps that go without, to see what one costs"
        return "drafts would cost more time than they save, by the acceptance and costs measured here"

    def verified(self, seq_id: int, num_drafts: int, num_accepted: int) -> None:
        self._verified.append((seq_id, num_drafts, num_accepted))

    def stepped(self, num_tokens: int, seconds: float) -> None:
        self._num_alike = self._num_alike + 1 if self._is_asked == self._was_asked else 0
        if self._is_heard:
            self._stepped.append((num_tokens, seconds, self._is_asked))
            if len(self._stepped) >= _MOST_UNLEARNED:  # nobody has asked for depths since
                self._learn()

    def drafted(self, num_levels: int, num_tokens: int, seconds: float) -> None:
        if self._has_joining:
            return
        self._is_asked = True
        if self._was_asked:
            self._drafted.append((num_levels, num_tokens, seconds))

    def forget(self, seq_id: int) -> None:
        self._learn()
        self._book.forget(seq_id)
        self._probed_at.pop(seq_id, None)
        self._depths.pop(seq_id, None)

    def _learn(self) -> None:
        """Takes in what was heard. It was only written down when it came: between two steps every line of code is slow.

        The model's weights have taken the caches then, and here the same few lines run again and again.
        """
        for verified in self._verified:
            self._book.verified(*verified)
        for num_levels, num_tokens, seconds in self._drafted:
            self._costs = self._costs.draft_corrected(num_levels, num_tokens, seconds)
        for num_tokens, seconds, is_after_draft in self._stepped:
            self._costs = self._costs.corrected(num_tokens, seconds, is_after_draft=is_after_draft)
        if self._verified or self._stepped:
            self._expected = {}
        self._verified, self._drafted, self._stepped = [], [], []

    def _rests(self, rows: Seq[DraftRow]) -> bool:
        """Whether a step has what was best for the same rows a few steps ago: to think takes time too."""
        return not any(row.made for row in rows) and self._is_rest_of([row.seq_id for row in rows])

    def _is_rest_of(self, seq_ids: Seq[int]) -> bool:
        is_probing = self._more.num_left or self._none.num_left
        return self._num_rested < self._rest and not is_probing and list(self._depths) == seq_ids

    @property
    def _is_heard(self) -> bool:
        """Whether the costs hear of this step: not right after a change, and of many alike of one in a few."""
        is_one_of_many = self._num_alike > _SETTLED and self._num_alike % _HEARD > 0
        return self._num_alike >= _CHANGE and (self._is_probe or not is_one_of_many)

    def _begin_step(self) -> None:
        self._has_joining = False
        self._was_asked, self._is_asked = self._is_asked, False
        self._is_probe = self._is_trial = False

    def _keep(self, depths: dict[int, int]) -> None:
        """Of rows whose drafts are made there is nothing to keep, so a step with any of them is never kept."""
        most = _MOST_REST_DRAFTING // len(depths) if any(depths.values()) else _MOST_REST
        self._rest = min(most, 2 * self._rest + 1) if depths == self._depths else 0
        self._depths, self._num_rested = depths, 0

    def _pays_to_begin(self, rows: Seq[DraftRow], row_survivals: Seq[Seq[float]], depths: Seq[int]) -> bool:
        """Whether these depths soon save what it takes to build the head's cache, where there were no drafts before."""
        if any(row.made or self._depths.get(row.seq_id) for row in rows):
            return True
        plain_s = emitted_of(depths, row_survivals) * self._costs.step.of(len(rows)) / len(rows)
        saved_s = plain_s - seconds_of(depths, self._costs)
        return _HORIZON * saved_s >= self._costs.draft.per_token_s * _num_to_build(rows, depths)

    def _save(self, step_s: float) -> None:
        self._more.save(step_s)
        self._none.save(step_s)

    def _fade(self, rows: Seq[DraftRow], depths: Seq[int]) -> None:
        """A row that had bad luck takes the server's acceptance again in the long run."""
        self._num_unfaded += 1 + self._num_rested
        if self._num_unfaded < _FADING:
            return
        for row, depth in zip(rows, depths, strict=True):
            num_asked = 0 if row.made else depth
            if num_asked < row.limit:
                self._book.fade(row.seq_id, num_asked, self._num_unfaded)
        self._num_unfaded = 0

    def _tries_none(self, rows: Seq[DraftRow], row_survivals: Seq[Seq[float]], depths: Seq[int]) -> bool:
        """Whether this step goes without drafts that are chosen; drafts that are made are never thrown away."""
        step_s = self._costs.step.of(len(rows))
        if not self._none.can_pay(_LEAST_GAIN * step_s, _RUN) or any(row.made for row in rows):
            return False
        gain_s = step_s - len(rows) / rate_of(depths, row_survivals, self._costs)
        return self._none.is_due(max(gain_s, _LEAST_GAIN * step_s), _RUN)

    def _probed(self, rows: Seq[DraftRow], row_survivals: Seq[Seq[float]], depths: list[int]) -> list[int]:
        """The depths, some of them one draft more if a probe is due.

        Among drafts it is one row in one step. Where there are none it is all rows, in a run of steps: what they cost
        once the caches are theirs is what is to be found out.
        """
        if any(depths):
            self._more.num_left = 0
        num_steps = 1 if any(depths) else _RUN
        step_s = self._costs.step.of(len(rows))
        if self._num_probes == 0 and self._book.is_empty:
            self._more.saved_s = max(self._more.saved_s, _RUN * _FIRST_COST * step_s)
        least_s = _LEAST_COST * step_s
        open_rows = [index for index, row in enumerate(rows) if not row.made and depths[index] < row.limit]
        if not open_rows or not self._more.can_pay(least_s, num_steps):
            return depths
        if any(depths):
            open_rows = [min(open_rows, key=lambda index: (self._probed_at.get(rows[index].seq_id, 0), index))]
        deeper = [depth + (index in open_rows) for index, depth in enumerate(depths)]
        worth = emitted_of(deeper, row_survivals) / emitted_of(depths, row_survivals)
        lost_s = self._seconds_of(rows, deeper) - worth * self._seconds_of(rows, depths)
        is_new = self._more.num_left == 0
        if not self._more.is_due(max(lost_s, least_s), num_steps):
            return depths
        self._num_probes += is_new
        self._is_probe = True
        # Whoever is gone is forgotten.
        self._probed_at = {row.seq_id: self._probed_at.get(row.seq_id, 0) for row in rows}
        self._probed_at |= {rows[index].seq_id: self._num_probes for index in open_rows}
        return deeper

    def _seconds_of(self, rows: Seq[DraftRow], depths: Seq[int]) -> float:
        """Seconds of a step of these depths with what the head must build first."""
        asked = [0 if row.made else depth for row, depth in zip(rows, depths, strict=True)]
        step_s = self._costs.step_s(len(rows), sum(depths), is_after_draft=any(asked))
        return step_s + self._costs.draft.of(max(asked), sum(asked) + _num_to_build(rows, asked))


def _num_to_build(rows: Seq[DraftRow], asked: Seq[int]) -> int:
    """Head slots to be built before those that these depths build anyway."""
    return sum(row.num_unprimed - 1 for row, depth in zip(rows, asked, strict=True) if depth)
