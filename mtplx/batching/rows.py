"""From a sequence to its next row, and from the row's outcome back into the sequence; no lists, no blocks to give."""

from __future__ import annotations

from mtplx.batching.ending import cut
from mtplx.batching.state import FinishReason, Row, RowOutcome, Sequence, SequenceEvent


def next_row(sequence: Sequence, max_tokens: int, block_size: int) -> Row:
    """Returns up to `max_tokens` pending tokens as a row, then drafts if there is room.

    Drafts follow only when the row reaches the end of the tokens, and are cut to `max_tokens` and to the blocks held: a
    draft never costs a block that wasn't reserved. Of a prompt that is to be scored every token has logits, once.

        token_ids p p p p e, computed 4, drafts d d, max_tokens 2: start 4, tokens e d, logits for both
        token_ids p p p p p, computed 0, max_tokens 2:             start 0, tokens p p, no logits
    """
    start = sequence.num_computed
    end = min(len(sequence.token_ids), start + max_tokens)
    room = len(sequence.block_ids) * block_size
    assert start < end <= room, f"sequence {sequence.seq_id} has no blocks for positions {start} to {end}"
    is_at_end = end == len(sequence.token_ids)
    drafts = sequence.draft_ids[: min(start + max_tokens, room) - end] if is_at_end else []
    scored_ids = _scored_ids(sequence, start, end)
    return Row(
        sequence.seq_id,
        start,
        (*sequence.token_ids[start:end], *drafts),
        tuple(sequence.block_ids),
        num_logits=len(scored_ids) + (1 + len(drafts) if is_at_end else 0),
        num_drafts=len(drafts),
        scored_ids=scored_ids,
    )


def apply_outcome(sequence: Sequence, row: Row, outcome: RowOutcome) -> SequenceEvent | None:
    """Moves the sequence's counters and tokens by one row; returns what it emitted, or None inside a prompt.

    A row with `a` accepted drafts computes its own tokens and `a` more; what the rejected ones wrote is dead.

    Raises:
        AssertionError: the row isn't the sequence's next one, or the outcome isn't the row's.
    """
    assert row.start == sequence.num_computed, "a plan is committed before the next is made"
    if outcome.error is not None:
        return SequenceEvent(
            row.seq_id,
            finish_reason=FinishReason.ERROR,
            error=outcome.error,
            is_clients_fault=outcome.is_clients_fault,
        )
    accepted = outcome.token_ids[:-1]
    assert bool(outcome.token_ids) == bool(row.num_drawn), "a token for each row that wants one, else none"
    assert accepted == row.draft_ids[: len(accepted)], "the tokens before the last are accepted drafts"
    sequence.num_computed = row.end - row.num_drafts + len(accepted)
    sequence.num_served += 1
    sequence.draft_ids = []
    sequence.num_unscored -= len(row.scored_ids)
    if not row.num_drawn:
        return None
    emitted, reason = cut(outcome.token_ids, sequence.num_emitted, sequence.stops)
    sequence.token_ids.extend(emitted)
    sequence.forced_ids = outcome.forced_ids
    return SequenceEvent(row.seq_id, emitted, reason, num_cached=sequence.num_cached)


def _scored_ids(sequence: Sequence, start: int, end: int) -> tuple[int, ...]:
    """The prompt tokens that are still to be scored and whose logits a row from `start` to `end` computes.

    prompt of 6, 3 unscored (the tokens at 3, 4, 5), start 0, end 4: the tokens at 3 and 4
    """
    first = max(start + 1, sequence.prompt_len - sequence.num_unscored)
    return tuple(sequence.token_ids[first : min(end + 1, sequence.prompt_len)])
