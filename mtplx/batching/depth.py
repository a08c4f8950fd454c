"""Policies for the draft depth of each row of a step: a fixed one, and one that follows acceptance and cost."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from mtplx.batching.acceptance import AcceptanceBook
from mtplx.batching.speculation import MAX_DEPTH, Costs, DraftCost, choose_depths, emitted_of, rate_of, seconds_of

PROBE_SHARE = 0.01
"""The most of the time that may go into drafts which the costs speak against, made to see whether they still do."""

PROBE_SHARE_OF_NONE = 0.005
"""The same for steps without drafts where the costs speak for some."""

_LEAST_COST = 0.05  # of a step, that a probe is taken to cost: so probes stay rare where the costs are wrong,
_LEAST_GAIN = 0.2  # and that drafts are taken to gain where steps go without: so these stay rare where it is little
_TRUST_IN_PROBES = 4.0  # beside a step of the kind that is chosen: they are rare,
_TRUST_IN_CHANGES = 0.2  # and in the first steps after one of the other kind
_MARGIN = 0.03  # of a row's time, that drafts must save after steps without any: luck looks like gain
_HORIZON = 64  # steps in which they must save what it takes to build the head's cache up to where they begin
_MOST_REST = 5  # steps without drafts for the same rows before it is thought over again, if there were none before,
_MOST_REST_DRAFTING = 4  # and steps with the same drafts, divided by the rows: many take longer to learn of
_SETTLED = 16  # steps without drafts in a row; from then on
_HEARD = 4  # one of so many corrects the costs
_FADING = 6  # steps for which what is known of positions without drafts fades at once
_CHANGE = 1  # steps with drafts that find the caches as those without left them,
_CHANGE_BACK = 5  # and steps without behind those with

_NO_ROOM = "no request had room or leave for a draft"


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

    @property
    def expects_drafts(self) -> bool:
        """Whether a sequence that still prefills will probably draft, so that its head may as well be built now."""
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

    def choose(self, rows: Seq[DraftRow], num_other_tokens: int) -> list[int]:
        """A depth for each row, at most its limit; `num_other_tokens` of the step are prompts."""
        ...

    def lengthen(self, rows: Seq[Seq[float]], depths: Seq[int], num_other_tokens: int) -> list[int]:
        """Depths for the same rows when all drafts are made, and perhaps more than were asked for; none gets less."""
        ...

    def why_none(self) -> str:
        """Why it would choose no drafts, one sentence."""
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

    @property
    def expects_drafts(self) -> bool:
        return self._depth > 0

    def survivals(self, seq_id: int, limit: int) -> list[float]:
        return self._book.survivals(seq_id, min(limit, self._depth))

    def choose(self, rows: Seq[DraftRow], num_other_tokens: int) -> list[int]:
        return [min(self._depth, len(row.made) or row.limit) for row in rows]

    def lengthen(self, rows: Seq[Seq[float]], depths: Seq[int], num_other_tokens: int) -> list[int]:
        return [max(depth, min(self._depth, len(row))) for row, depth in zip(rows, depths, strict=True)]

    def why_none(self) -> str:
        return "the draft depth is set to 0" if self._depth == 0 else _NO_ROOM

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
    chosen in the row that was probed longest ago; and from `PROBE_SHARE_OF_NONE` for steps without drafts where some
    were chosen, since nothing else says what these cost. A step corrects the costs above all if the one before was of
    its kind: what a change from drafts or to them costs once isn't what either costs in the long run.
    """

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._book: AcceptanceBook[int] = AcceptanceBook()
        self._more, self._none = _Probe(PROBE_SHARE), _Probe(PROBE_SHARE_OF_NONE)
        self._probed_at: dict[int, int] = {}  # by seq_id, in probes
        self._num_probes = 0
        self._is_asked = self._was_asked = False  # the head, for this step and the one before
        self._num_alike = 0  # steps before this one that were of its kind
        self._chose_drafts = True
        self._had_room = True
        self._is_trial = False
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

    @property
    def expects_drafts(self) -> bool:
        return self._chose_drafts

    def survivals(self, seq_id: int, limit: int) -> list[float]:
        return self._book.survivals(seq_id, limit)

    def choose(self, rows: Seq[DraftRow], num_other_tokens: int) -> list[int]:
        self._was_asked, self._is_asked = self._is_asked, False
        if not rows:
            return []
        self._had_room, self._is_trial = any(row.limit for row in rows), False
        base = len(rows) + num_other_tokens
        if self._rests(rows, num_other_tokens):
            depths = [0 if num_other_tokens else min(self._depths[row.seq_id], row.limit) for row in rows]
            self._save(self._costs.step_s(base, sum(depths), is_after_draft=any(depths)))
            return depths
        row_survivals = [row.made or self._book.survivals(row.seq_id, row.limit) for row in rows]
        depths = choose_depths(row_survivals, self._costs, num_other_tokens, [bool(row.made) for row in rows])
        if any(depths) and self._is_luck(rows, row_survivals, depths, num_other_tokens):
            depths = [0] * len(rows)
        asked = [depth for row, depth in zip(rows, depths, strict=True) if not row.made]
        if asked and not num_other_tokens:
            self._chose_drafts = any(asked)
        self._fade(rows, depths)
        self._keep({row.seq_id: 0 if row.made else depth for row, depth in zip(rows, depths, strict=True)})
        step_s = self._costs.step_s(base, sum(depths), is_after_draft=any(asked))
        self._save(step_s)
        if any(depths) and self._tries_none(rows, row_survivals, depths, num_other_tokens):
            self._is_trial = True
            return [0] * len(rows)
        self._probe(rows, depths, base, step_s)
        return depths

    def lengthen(self, rows: Seq[Seq[float]], depths: Seq[int], num_other_tokens: int) -> list[int]:
        made = Costs(self._costs.after_draft or self._costs.step, DraftCost())
        best = choose_depths(rows, made, num_other_tokens, [True] * len(rows))
        return [max(pair) for pair in zip(depths, best, strict=True)]

    def why_none(self) -> str:
        if not self._had_room:
            return _NO_ROOM
        if self._is_trial:
            return "drafts pay; this is one of the few steps that go without, to see what one costs"
        return "drafts would cost more time than they save, by the acceptance and costs measured here"

    def verified(self, seq_id: int, num_drafts: int, num_accepted: int) -> None:
        self._book.verified(seq_id, num_drafts, num_accepted)

    def stepped(self, num_tokens: int, seconds: float) -> None:
        self._num_alike = self._num_alike + 1 if self._is_asked == self._was_asked else 0
        if not self._is_asked and self._num_alike > _SETTLED and self._num_alike % _HEARD:
            return
        if self._num_alike < (_CHANGE if self._is_asked else _CHANGE_BACK):
            trust = _TRUST_IN_CHANGES
        else:
            trust = 1.0 if self._is_asked == self._chose_drafts else _TRUST_IN_PROBES
        self._costs = self._costs.corrected(num_tokens, seconds, is_after_draft=self._is_asked, trust=trust)

    def drafted(self, num_levels: int, num_tokens: int, seconds: float) -> None:
        self._is_asked = True
        trust = 1.0 if self._was_asked else _TRUST_IN_CHANGES
        self._costs = self._costs.draft_corrected(num_levels, num_tokens, seconds, trust)

    def forget(self, seq_id: int) -> None:
        self._book.forget(seq_id)
        self._probed_at.pop(seq_id, None)
        self._depths.pop(seq_id, None)

    def _rests(self, rows: Seq[DraftRow], num_other_tokens: int) -> bool:
        """Whether a step has what was best for the same rows a few steps ago: to think takes time too.

        Beside a prompt a few drafts cost little, but where there are none otherwise the head's own cache is to be built
        first. So a step with a prompt has none then.
        """
        if any(row.made for row in rows):
            return False
        if num_other_tokens:
            return not self._chose_drafts
        is_probing = self._more.num_left or self._none.num_left
        if self._num_rested >= self._rest or is_probing or list(self._depths) != [row.seq_id for row in rows]:
            return False
        self._num_rested += 1
        return True

    def _keep(self, depths: dict[int, int]) -> None:
        most = _MOST_REST_DRAFTING // len(depths) if any(depths.values()) else _MOST_REST
        self._rest = min(most, 2 * self._rest + 1) if depths == self._depths else 0
        self._depths, self._num_rested = depths, 0

    def _is_luck(
        self, rows: Seq[DraftRow], row_survivals: Seq[Seq[float]], depths: Seq[int], num_other_tokens: int
    ) -> bool:
        """Whether the steps before had no drafts and these depths save hardly any time, or less than it costs to begin.

        Whoever is near to break even would change for ever, and each change costs what the caches held.
        """
        if any(row.made or self._depths.get(row.seq_id, 1) for row in rows):
            return False
        plain_s = emitted_of(depths, row_survivals) * self._costs.step.of(len(rows) + num_other_tokens) / len(rows)
        saved_s = plain_s - seconds_of(depths, self._costs, num_other_tokens)
        num_unprimed = sum(row.num_unprimed - 1 for row, depth in zip(rows, depths, strict=True) if depth)
        build_s = self._costs.draft.per_token_s * num_unprimed
        return saved_s < _MARGIN * plain_s / len(rows) + build_s / _HORIZON

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

    def _tries_none(
        self, rows: Seq[DraftRow], row_survivals: Seq[Seq[float]], depths: Seq[int], num_other_tokens: int
    ) -> bool:
        """Whether this step goes without drafts that are chosen; drafts that are made are never thrown away."""
        step_s = self._costs.step.of(len(rows) + num_other_tokens)
        if not self._none.can_pay(_LEAST_GAIN * step_s, _CHANGE_BACK + 1) or any(row.made for row in rows):
            return False
        gain_s = step_s - len(rows) / rate_of(depths, row_survivals, self._costs, num_other_tokens)
        return self._none.is_due(max(gain_s, _LEAST_GAIN * step_s), _CHANGE_BACK + 1)

    def _probe(self, rows: Seq[DraftRow], depths: list[int], base: int, step_s: float) -> None:
        """Deepens one row by one draft if that is due, in a step of `step_s` without; changes `depths`."""
        num_steps = 1 if self._chose_drafts else _CHANGE + 1
        if not self._more.can_pay(_LEAST_COST * step_s, num_steps):
            return
        open_rows = [index for index, row in enumerate(rows) if not row.made and depths[index] < row.limit]
        if not open_rows:
            return
        is_in_run = self._more.num_left > 0
        index = min(open_rows, key=lambda index: (self._turn(rows[index].seq_id, is_in_run), rows[index].seq_id))
        row, costs = rows[index], self._costs
        is_deepest = depths[index] == max(depths)
        num_head_tokens = 1 + (row.num_unprimed if depths[index] == 0 else 0)
        cost_s = costs.step_s(base, sum(depths) + 1, is_after_draft=True) - step_s
        cost_s += costs.draft.of(int(is_deepest), num_head_tokens)
        if not self._more.is_due(max(cost_s, _LEAST_COST * step_s), num_steps):
            return
        depths[index] += 1
        self._num_probes += not is_in_run
        self._probed_at[row.seq_id] = self._num_probes

    def _turn(self, seq_id: int, is_in_run: bool) -> int:
        """The row that was probed longest ago is next; a run goes on with the row that it began with."""
        probed_at = self._probed_at.get(seq_id, 0)
        return -probed_at if is_in_run else probed_at
