"""How the tokens of one step are divided among sequences; pure functions over ints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mtplx.batching.state import Sequence

MAX_SCORED_TOKENS = 128
"""Prompt tokens of one step whose logits are all wanted, over all sequences: a line of logits takes its 200 kB."""


@dataclass(frozen=True, slots=True)
class Phases:
    """The running sequences by what they do next, each in the order they were given."""

    decoding: list[Sequence]
    prefilling: list[Sequence]


@dataclass(frozen=True, slots=True)
class Share:
    """`num_tokens` of a step's budget for `sequence`; at least 1."""

    sequence: Sequence
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Split:
    """A mixed step's budget: how many sequences decode one token, and how many tokens are prefilled."""

    num_decoding: int
    num_prefill_tokens: int


def split_phases(running: Iterable[Sequence]) -> Phases:
    phases = Phases([], [])
    for sequence in running:
        (phases.decoding if sequence.is_decoding else phases.prefilling).append(sequence)
    return phases


def share_out(line: Iterable[Sequence], budget: int, num_to_score: int = MAX_SCORED_TOKENS) -> list[Share]:
    """Gives each in turn as many tokens as it has pending, until the budget is spent.

    Three sequences with 10, 50 and 20 tokens pending and a budget of 64 get 10, 50 and 4. Prompts that are to be scored
    get `num_to_score` together at most.
    """
    shares = []
    for sequence in line:
        num_tokens = min(sequence.num_pending, budget, num_to_score if sequence.num_unscored else budget)
        if num_tokens <= 0:
            continue
        shares.append(Share(sequence, num_tokens))
        budget -= num_tokens
        num_to_score -= num_tokens if sequence.num_unscored else 0
    return shares


def share_out_short_first(line: Iterable[Sequence], budget: int) -> list[Share]:
    """As `share_out`, but up to half of the budget goes to those with fewer tokens pending than the first in line.

    So a short prompt doesn't wait for a long one's end, a long one goes on however many short ones come, and prompts of
    one length are computed one after the other.

        pending 6000 first, then 90 and 20, budget 64:  32 of the first, 20 of the last, 12 of the other
    """
    line = list(line)
    if not line:
        return []
    first, *others = line
    shorter = [sequence for sequence in others if sequence.num_pending < first.num_pending]
    longer = [sequence for sequence in others if sequence.num_pending >= first.num_pending]
    kept = min(first.num_pending, (budget + 1) // 2)
    shares = share_out(sorted(shorter, key=lambda sequence: sequence.num_pending), budget - kept)
    left = budget - sum(share.num_tokens for share in shares)
    num_scored = sum(share.num_tokens for share in shares if share.sequence.num_unscored)
    return share_out((first, *longer), left, MAX_SCORED_TOKENS - num_scored) + shares


def split_mixed(budget: int, num_decoding: int, num_prefill_pending: int) -> Split:
    """Divides a mixed step: decoding comes first, but a quarter of the budget is kept for prefill that is pending.

    Both sides get at least one token if they have work, also when the budget is 1.

        split_mixed(64, 10, 1000)    # 10 decode, 54 prefill
        split_mixed(64, 64, 1000)    # 48 decode, 16 prefill
        split_mixed(64, 64, 0)       # 64 decode
    """
    kept = min(num_prefill_pending, max(1, budget // 4))
    num_decoding = min(num_decoding, max(1, budget - kept))
    return Split(num_decoding, min(num_prefill_pending, max(kept, budget - num_decoding)))
