"""How many drafts a step is worth: survival of drafts, cost of steps, and the best depths; pure functions over numbers.

Knows neither sequences nor blocks, and reads no clock. A draft survives if it and all drafts before it are accepted.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

MAX_DEPTH = 8

FIRST_GUESS = 0.6  # a head's acceptance before anything was seen of it
_SERVER_WEIGHT = 8.0  # observations that the first guess counts for beside the server's,
_ROW_WEIGHT = 16.0  # and that the server's acceptance counts for beside the row's
_LEAST_SURVIVAL = 0.02
_NEXT = 0.95  # of what one position accepts the next one is taken to
_MAX_PACE, _MIN_PACE = 0.05, 0.005  # the most that one observed time moves what is believed, when all is new or settled
_FASTER, _SLOWER = 1.2, 0.8  # how the pace changes when a time errs to the same side as the one before, and when not


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How often drafts were tried and accepted, by position; older observations weigh less."""

    tried: tuple[float, ...] = (0.0,) * MAX_DEPTH
    accepted: tuple[float, ...] = (0.0,) * MAX_DEPTH

    def after(self, num_drafts: int, num_accepted: int, *, keep: float) -> Acceptance:
        """With one more verified row; each position that was tried keeps `keep` of what was known of it.

        Three drafts of which one was accepted: the first was accepted, the second refused, the third not tried.
        """
        num_tried = min(num_drafts, num_accepted + 1)
        tried = [keep * count + 1.0 for count in self.tried[:num_tried]]
        accepted = [keep * count + (i < num_accepted) for i, count in enumerate(self.accepted[:num_tried])]
        return Acceptance(
            (*tried, *self.tried[num_tried:]),
            (*accepted, *self.accepted[num_tried:]),
        )

    def faded(self, depth: int, *, keep: float) -> Acceptance:
        """With less known of the positions from `depth` on, which were not tried."""
        return Acceptance(
            (*self.tried[:depth], *(keep * count for count in self.tried[depth:])),
            (*self.accepted[:depth], *(keep * count for count in self.accepted[depth:])),
        )


def priors(server: Acceptance, first_guess: float = FIRST_GUESS) -> list[float]:
    """For each position what a row is believed to accept before anything was seen of it.

    Of the first one that is `first_guess` while nothing is known of the server either. A position of which little is
    known is believed to be nearly as good as the one before it.
    """
    guess, found = first_guess, []
    for accepted, tried in zip(server.accepted, server.tried, strict=True):
        found.append(_blend(accepted, tried, guess, _SERVER_WEIGHT))
        guess = _NEXT * found[-1]
    return found


def survivals(row: Acceptance, server_priors: Seq[float], limit: int) -> list[float]:
    """For each of the first `limit` drafts of a row the probability that it survives; never rises along the list.

    The list ends before a draft that hardly ever would: whatever it costs, nothing is lost without it.
    """
    survival, found = 1.0, []
    for i in range(limit):
        survival *= _blend(row.accepted[i], row.tried[i], server_priors[i], _ROW_WEIGHT)
        if survival < _LEAST_SURVIVAL:
            break
        found.append(survival)
    return found


@dataclass(frozen=True, slots=True)
class Pace:
    """How far one observed time may move a belief, so that it comes quickly to where times are and then stays there.

    The limit grows while times err to the same side and shrinks when they don't, so that a belief settles near the
    median of what is observed, whatever the outliers.
    """

    limit: float = _MAX_PACE  # of the logarithm
    was_longer: bool = False

    def towards(self, observed_s: float, expected_s: float) -> tuple[float, Pace]:
        """The logarithm of what to multiply the expected time with, and the pace from then on."""
        if observed_s <= 0.0 or expected_s <= 0.0:
            return 0.0, self
        error = math.log(observed_s / expected_s)
        is_longer = error > 0.0
        factor = _FASTER if is_longer == self.was_longer else _SLOWER
        limit = max(_MIN_PACE, min(_MAX_PACE, self.limit * factor))
        return max(-self.limit, min(self.limit, error)), Pace(limit, is_longer)


@dataclass(frozen=True, slots=True)
class CostTable:
    """Seconds that a step takes by its number of tokens, which rises in stairs on most machines.

    `seconds[n - 1]` is for n tokens and never falls with n; beyond its end the mean slope goes on. All are multiplied
    by `scale`. Each number of tokens that was observed has its own of the `paces`: where one is believed too dear and
    the other too cheap, errors alternate and nothing has settled.
    """

    seconds: tuple[float, ...]
    scale: float = 1.0
    paces: Mapping[int, Pace] = field(default_factory=dict)

    def of(self, num_tokens: int) -> float:
        """Seconds of a step of so many tokens, at least one."""
        last = len(self.seconds)
        if num_tokens <= last:
            return self.scale * self.seconds[max(num_tokens, 1) - 1]
        slope = (self.seconds[-1] - self.seconds[0]) / (last - 1) if last > 1 else self.seconds[0]
        return self.scale * (self.seconds[-1] + slope * (num_tokens - last))

    def following(self, num_tokens: int, count: int) -> list[float]:
        """Seconds of steps of one to `count` tokens more than so many."""
        measured = [self.scale * seconds for seconds in self.seconds[num_tokens : num_tokens + count]]
        return measured + [self.of(num_tokens + more) for more in range(len(measured) + 1, count + 1)]

    def corrected(self, num_tokens: int, seconds: float) -> CostTable:
        """Moved a little towards one observed step: half of it as a whole, half at this number of tokens alone.

        A whole, since a machine that got busy is slower at every size; a single size, since the table may be wrong
        there. The move's size is bounded, so it settles near the median of what is observed. More tokens never cost
        less: the sizes on either side follow where they would say so.
        """
        correction, pace = self.paces.get(num_tokens, Pace()).towards(seconds, self.of(num_tokens))
        if correction == 0.0:
            return self
        paces = {**self.paces, num_tokens: pace}
        half = math.exp(correction / 2)
        index = num_tokens - 1
        if index >= len(self.seconds):
            return replace(self, scale=self.scale * half, paces=paces)
        moved = self.seconds[index] * half
        begin = bisect_left(self.seconds, moved, hi=index)  # where fewer tokens would cost more,
        end = bisect_right(self.seconds, moved, lo=num_tokens)  # and more of them less
        entries = (*self.seconds[:begin], *(moved,) * (end - begin), *self.seconds[end:])
        return CostTable(entries, self.scale * half, paces)


@dataclass(frozen=True, slots=True)
class DraftCost:
    """Seconds of drafting: so much for each level of depth, and for each token that the head computes."""

    per_level_s: float = 0.0
    per_token_s: float = 0.0
    pace: Pace = Pace()

    def of(self, num_levels: int, num_tokens: int) -> float:
        return self.per_level_s * num_levels + self.per_token_s * num_tokens

    def scaled(self, factor: float) -> DraftCost:
        """So many times as dear."""
        return DraftCost(self.per_level_s * factor, self.per_token_s * factor, self.pace)

    def corrected(self, num_levels: int, num_tokens: int, seconds: float) -> DraftCost:
        """Scaled a little towards one observed time."""
        correction, pace = self.pace.towards(seconds, self.of(num_levels, num_tokens))
        return replace(self.scaled(math.exp(correction)), pace=pace)


@dataclass(frozen=True, slots=True)
class Costs:
    """What a machine needs for a step with drafts.

    A step that a draft came before takes longer than one after another step, since the head's weights have pushed some
    of the model's out of the caches. `after_draft` is of those; None where no difference is known.
    """

    step: CostTable
    draft: DraftCost
    after_draft: CostTable | None = None
    is_cached: bool = False  # begun from what an earlier start measured

    def step_s(self, num_tokens: int, num_drafts: int, *, is_after_draft: bool) -> float:
        """Seconds of a step of `num_tokens` and so many drafts more.

        With drafts of the head it is never quicker than without: the tables are corrected at different times.
        """
        if not is_after_draft:
            return self.step.of(num_tokens + num_drafts)
        return max(self.step.of(num_tokens), (self.after_draft or self.step).of(num_tokens + num_drafts))

    def steps_s(self, num_tokens: int, most_drafts: int, *, is_after_draft: bool) -> list[float]:
        """The same for one draft, two, .. up to `most_drafts`, at least one."""
        if not is_after_draft:
            return self.step.following(num_tokens, most_drafts)
        plain_s = self.step.of(num_tokens)
        found = (self.after_draft or self.step).following(num_tokens, most_drafts)
        return found if found[0] >= plain_s else [max(plain_s, seconds) for seconds in found]

    def corrected(self, num_tokens: int, seconds: float, *, is_after_draft: bool) -> Costs:
        """With one observed step.

        As far as steps without drafts move as a whole all else does too: the machine is slower then. What steps with
        drafts take more than was believed says nothing of those without.
        """
        after_draft = self.after_draft or self.step
        if is_after_draft:
            return Costs(self.step, self.draft, after_draft.corrected(num_tokens, seconds), self.is_cached)
        step = self.step.corrected(num_tokens, seconds)
        factor = step.scale / self.step.scale
        after_draft = replace(after_draft, scale=factor * after_draft.scale)
        return Costs(step, self.draft.scaled(factor), after_draft, self.is_cached)

    def draft_corrected(self, num_levels: int, num_tokens: int, seconds: float) -> Costs:
        """With one observed time of drafting, as `DraftCost.corrected`."""
        draft = self.draft.corrected(num_levels, num_tokens, seconds)
        return Costs(self.step, draft, self.after_draft, self.is_cached)


def choose_depths(row_survivals: Seq[Seq[float]], costs: Costs, are_made: Seq[bool] = ()) -> list[int]:
    """Returns for each row the number of drafts with which the most tokens a second are emitted; fewer on a tie.

    A row of n drafts costs 1 + n tokens of the step and emits 1 + the sum of its drafts' survivals; a row's list of
    survivals ends at its limit. `are_made` says of which rows the drafts are there already, so that nothing is to be
    paid for making them. For each
    greatest depth the candidates are taken in order of survival, and every count of them is tried, since the cost of a
    step has stairs: this is the best of all choices, not only of those on the way. With rows of both kinds that holds
    but for the order, in which the small cost of making one draft doesn't count.

        one row, survivals 0.9 0.81, step 10 + n, drafting free: 2.71 / 13 > 1.9 / 12 > 1 / 11, so [2]
    """
    num_rows = len(row_survivals)
    made = frozenset(row for row, is_made in enumerate(are_made) if is_made)
    deepest = max((len(survival) for row, survival in enumerate(row_survivals) if row not in made), default=0)
    ranked = _ranked(row_survivals)
    best_rate, best = num_rows / costs.step.of(num_rows), (0, 0)
    if not ranked:
        return [0] * num_rows
    with_head_s = costs.steps_s(num_rows, len(ranked), is_after_draft=True)
    if not (made or _can_pay(ranked, num_rows, with_head_s, costs.draft, best_rate)):
        return [0] * num_rows
    for max_depth in range(0 if made else 1, deepest + 1):
        if max_depth and _emitted_from(max_depth, row_survivals) <= best_rate * costs.draft.per_level_s:
            break  # all drafts of this depth and those behind them are not worth one level more
        steps_s = with_head_s if max_depth else costs.steps_s(num_rows, len(ranked), is_after_draft=False)
        emitted, count, drafting_s = float(num_rows), 0, costs.draft.per_level_s * max_depth
        is_new = max_depth == 0  # other choices were tried with a lesser greatest depth
        for minus_survival, depth, row in ranked:
            if row not in made:
                if depth > max_depth:
                    continue
                drafting_s += costs.draft.per_token_s
                is_new = is_new or depth == max_depth
            emitted -= minus_survival
            count += 1
            if is_new and emitted > best_rate * (steps_s[count - 1] + drafting_s):
                best_rate, best = emitted / (steps_s[count - 1] + drafting_s), (max_depth, count)
    max_depth, count = best
    depths = [0] * num_rows
    for _, _, row in [one for one in ranked if one[2] in made or one[1] <= max_depth][:count]:
        depths[row] += 1
    return depths


def rate_of(depths: Seq[int], row_survivals: Seq[Seq[float]], costs: Costs) -> float:
    """Emitted tokens a second that these depths promise, if the head makes the drafts."""
    return emitted_of(depths, row_survivals) / seconds_of(depths, costs)


def emitted_of(depths: Seq[int], row_survivals: Seq[Seq[float]]) -> float:
    """Tokens that a step of these depths is expected to emit."""
    return len(depths) + sum(sum(survival[:depth]) for depth, survival in zip(depths, row_survivals, strict=True))


def seconds_of(depths: Seq[int], costs: Costs) -> float:
    """Seconds of a step of these depths, if the head makes the drafts, its own time included."""
    step_s = costs.step_s(len(depths), sum(depths), is_after_draft=any(depths))
    return step_s + costs.draft.of(max(depths, default=0), sum(depths))


def _ranked(row_survivals: Seq[Seq[float]]) -> list[tuple[float, int, int]]:
    """All drafts that could be made, as (-survival, depth, row): the likeliest first, none before what it builds on."""
    return sorted(
        (-survival, depth, row)
        for row, survivals_of_row in enumerate(row_survivals)
        for depth, survival in enumerate(survivals_of_row, start=1)
    )


def _emitted_from(depth: int, row_survivals: Seq[Seq[float]]) -> float:
    """Tokens that all drafts of this depth and greater ones are expected to add."""
    return sum(sum(survival[depth - 1 :]) for survival in row_survivals)


def _can_pay(
    ranked: Seq[tuple[float, int, int]], num_rows: int, steps_s: Seq[float], draft: DraftCost, plain_rate: float
) -> bool:
    """Whether drafts would pay if all their levels cost as much as one: where even so they don't, no more is tried."""
    emitted, drafting_s = float(num_rows), draft.per_level_s
    for (minus_survival, _, _), step_s in zip(ranked, steps_s, strict=True):
        emitted -= minus_survival
        drafting_s += draft.per_token_s
        if emitted > plain_rate * (step_s + drafting_s):
            return True
    return False


def _blend(accepted: float, tried: float, prior: float, weight: float) -> float:
    return (accepted + weight * prior) / (tried + weight)
