"""Policies for the draft depth of each row of a step: a fixed one, and one that follows acceptance and cost."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Protocol

from mtplx.batching.speculation import Acceptance, Costs, choose_depths, priors, survivals

PROBE_SHARE = 0.01
"""The most of the time that may go into drafts which the costs speak against, made to see whether they still do."""

_NO_ROOM = "no request had room or leave for a draft"
_KEEP_ROW = 0.98  # a row's acceptance is forgotten over some fifty verified rows,
_KEEP_SERVER = 0.995  # the server's over two hundred,
_KEEP_IDLE = 0.995  # and what is known of a depth that the row doesn't use, over two hundred steps


@dataclass(frozen=True, slots=True)
class DraftRow:
    """A sequence that decodes in the step: how many drafts it may have, and how many head slots it is behind."""

    seq_id: int
    limit: int
    num_unprimed: int


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

    def choose(self, rows: Seq[DraftRow], num_other_tokens: int) -> list[int]:
        """A depth for each row, at most its limit; `num_other_tokens` of the step are prompts."""
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

    @property
    def expects_drafts(self) -> bool:
        return self._depth > 0

    def choose(self, rows: Seq[DraftRow], num_other_tokens: int) -> list[int]:
        return [min(self._depth, row.limit) for row in rows]

    def why_none(self) -> str:
        return "the draft depth is set to 0" if self._depth == 0 else _NO_ROOM

    def verified(self, seq_id: int, num_drafts: int, num_accepted: int) -> None: ...

    def stepped(self, num_tokens: int, seconds: float) -> None: ...

    def drafted(self, num_levels: int, num_tokens: int, seconds: float) -> None: ...

    def forget(self, seq_id: int) -> None: ...


class AdaptiveDepth:
    """The depths that promise the most tokens a second, from running acceptance and measured costs.

    It never decides for good: from `PROBE_SHARE` of the time it saves up for a probe, which is one draft more than
    chosen in the row that was probed longest ago. A probe spends all that was saved, so there are no bursts.
    """

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._server = Acceptance()
        self._rows: dict[int, Acceptance] = {}
        self._probed_at: dict[int, int] = {}  # by seq_id, in probes
        self._num_probes = 0
        self._saved_s = 0.0
        self._chose_drafts = True
        self._had_room = True

    @property
    def costs(self) -> Costs:
        return self._costs

    @property
    def num_probes(self) -> int:
        return self._num_probes

    @property
    def expects_drafts(self) -> bool:
        return self._chose_drafts

    def choose(self, rows: Seq[DraftRow], num_other_tokens: int) -> list[int]:
        if not rows:
            return []
        server_priors = priors(self._server)
        self._had_room = any(row.limit for row in rows)
        row_survivals = [survivals(self._of(row.seq_id), server_priors, row.limit) for row in rows]
        depths = choose_depths(row_survivals, self._costs, num_other_tokens)
        self._chose_drafts = any(depths)
        self._fade(rows, depths)
        num_tokens = len(rows) + num_other_tokens + sum(depths)
        self._saved_s += PROBE_SHARE * self._costs.step.of(num_tokens)
        self._probe(rows, depths, num_tokens)
        return depths

    def why_none(self) -> str:
        if not self._had_room:
            return _NO_ROOM
        return "drafts would cost more time than they save, by the acceptance and costs measured here"

    def verified(self, seq_id: int, num_drafts: int, num_accepted: int) -> None:
        self._rows[seq_id] = self._of(seq_id).after(num_drafts, num_accepted, keep=_KEEP_ROW)
        self._server = self._server.after(num_drafts, num_accepted, keep=_KEEP_SERVER)

    def stepped(self, num_tokens: int, seconds: float) -> None:
        self._costs = replace(self._costs, step=self._costs.step.corrected(num_tokens, seconds))

    def drafted(self, num_levels: int, num_tokens: int, seconds: float) -> None:
        self._costs = replace(self._costs, draft=self._costs.draft.corrected(num_levels, num_tokens, seconds))

    def forget(self, seq_id: int) -> None:
        self._rows.pop(seq_id, None)
        self._probed_at.pop(seq_id, None)

    def _of(self, seq_id: int) -> Acceptance:
        return self._rows.get(seq_id, _NOTHING_SEEN)

    def _fade(self, rows: Seq[DraftRow], depths: Seq[int]) -> None:
        """A row that had bad luck takes the server's acceptance again with time."""
        for row, depth in zip(rows, depths, strict=True):
            if depth < row.limit and row.seq_id in self._rows:
                self._rows[row.seq_id] = self._rows[row.seq_id].faded(depth, keep=_KEEP_IDLE)

    def _probe(self, rows: Seq[DraftRow], depths: list[int], num_tokens: int) -> None:
        """Deepens one row by one draft if what is saved pays for it; changes `depths`."""
        open_rows = [index for index, row in enumerate(rows) if depths[index] < row.limit]
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


_NOTHING_SEEN = Acceptance()
