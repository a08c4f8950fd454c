"""Policies for the draft depth of each row of a step: a fixed one, and one that follows acceptance and cost."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Protocol

from mtplx.batching.acceptance import AcceptanceBook
from mtplx.batching.speculation import MAX_DEPTH, Costs, choose_depths, rate_of

PROBE_SHARE = 0.01
"""The most of the time that may go into drafts which the costs speak against, made to see whether they still do."""

PROBE_SHARE_OF_NONE = 0.005
"""The same for steps without drafts where the costs speak for some."""

_LEAST_GAIN = 0.1  # of a step: what drafts are taken to gain at least, so that steps without them stay rare

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


class AdaptiveDepth:
    """The depths that promise the most tokens a second, from running acceptance and measured costs.

    It never decides for good: from `PROBE_SHARE` of the time it saves up for a probe, which is one draft more than
    chosen in the row that was probed longest ago; and from `PROBE_SHARE_OF_NONE` for a step without drafts where some
    were chosen, since nothing else says what that costs. A probe spends all that was saved, so there are no bursts.
    """

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._book: AcceptanceBook[int] = AcceptanceBook()
        self._probed_at: dict[int, int] = {}  # by seq_id, in probes
        self._num_probes = 0
        self._saved_s = self._saved_for_none_s = 0.0
        self._chose_drafts = True
        self._had_room = True

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
        if not rows:
            return []
        self._had_room = any(row.limit for row in rows)
        row_survivals = [row.made or self._book.survivals(row.seq_id, row.limit) for row in rows]
        depths = choose_depths(row_survivals, self._costs, num_other_tokens, [bool(row.made) for row in rows])
        asked = [depth for row, depth in zip(rows, depths, strict=True) if not row.made]
        self._chose_drafts = any(asked) if asked else self._chose_drafts
        self._fade(rows, depths)
        num_tokens = len(rows) + num_other_tokens + sum(depths)
        self._saved_s += PROBE_SHARE * self._costs.step.of(num_tokens)
        self._saved_for_none_s += PROBE_SHARE_OF_NONE * self._costs.step.of(num_tokens)
        if any(depths) and self._affords_none(rows, row_survivals, depths, num_other_tokens):
            self._saved_for_none_s = 0.0
            return [0] * len(rows)
        self._probe(rows, depths, num_tokens)
        return depths

    def lengthen(self, rows: Seq[Seq[float]], depths: Seq[int], num_other_tokens: int) -> list[int]:
        best = choose_depths(rows, self._costs, num_other_tokens, [True] * len(rows))
        return [max(pair) for pair in zip(depths, best, strict=True)]

    def why_none(self) -> str:
        if not self._had_room:
            return _NO_ROOM
        return "drafts would cost more time than they save, by the acceptance and costs measured here"

    def verified(self, seq_id: int, num_drafts: int, num_accepted: int) -> None:
        self._book.verified(seq_id, num_drafts, num_accepted)

    def stepped(self, num_tokens: int, seconds: float) -> None:
        self._costs = replace(self._costs, step=self._costs.step.corrected(num_tokens, seconds))

    def drafted(self, num_levels: int, num_tokens: int, seconds: float) -> None:
        self._costs = replace(self._costs, draft=self._costs.draft.corrected(num_levels, num_tokens, seconds))

    def forget(self, seq_id: int) -> None:
        self._book.forget(seq_id)
        self._probed_at.pop(seq_id, None)

    def _fade(self, rows: Seq[DraftRow], depths: Seq[int]) -> None:
        """A row that had bad luck takes the server's acceptance again with time."""
        for row, depth in zip(rows, depths, strict=True):
            num_asked = 0 if row.made else depth
            if num_asked < row.limit:
                self._book.fade(row.seq_id, num_asked)

    def _affords_none(
        self, rows: Seq[DraftRow], row_survivals: Seq[Seq[float]], depths: Seq[int], num_other_tokens: int
    ) -> bool:
        """Whether what is saved pays for what this step's drafts gain; drafts that are made are never thrown away."""
        if any(row.made for row in rows):
            return False
        step_s = self._costs.step.of(len(rows) + num_other_tokens)
        gain_s = step_s - len(rows) / rate_of(depths, row_survivals, self._costs, num_other_tokens)
        return self._saved_for_none_s >= max(gain_s, _LEAST_GAIN * step_s)

    def _probe(self, rows: Seq[DraftRow], depths: list[int], num_tokens: int) -> None:
        """Deepens one row by one draft if what is saved pays for it; changes `depths`."""
        open_rows = [index for index, row in enumerate(rows) if not row.made and depths[index] < row.limit]
        if not open_rows:
            return
        index = min(open_rows, key=lambda index: (self._probed_at.get(rows[index].seq_id, 0), rows[index].seq_id))
        row, costs = rows[index], self._costs
        is_deepest = depths[index] == max(depths)
        num_head_tokens = 1 + (row.num_unprimed if depths[index] == 0 else 0)
        cost_s = costs.step.of(num_tokens + 1) - costs.step.of(num_tokens)
        cost_s += costs.draft.of(int(is_deepest), num_head_tokens)
        if self._saved_s < cost_s:
            return
        depths[index] += 1
        self._num_probes += 1
        self._probed_at[row.seq_id] = self._num_probes
        self._saved_s = 0.0
