"""Where an answer ends, as far as token ids tell: the only place that cuts tokens off."""

from __future__ import annotations

from mtplx.batching.state import FinishReason, StopRules


def cut(token_ids: tuple[int, ...], num_emitted: int, stops: StopRules) -> tuple[tuple[int, ...], FinishReason | None]:
    """Returns the tokens that are really emitted, and why the sequence ends with the last of them if it does.

    `num_emitted` counts the tokens emitted before. The first boundary in token order wins; a stop id that is also the
    last token allowed counts as a stop. Where none is allowed there is no boundary but the first.

        cut((5, 2, 7), 0, StopRules(max_tokens=9, stop_ids=frozenset({2})))    # ((5, 2), STOP)
        cut((5, 6, 7), 3, StopRules(max_tokens=5))                             # ((5, 6), LENGTH)
        cut((5, 6, 7), 0, StopRules(max_tokens=5))                             # ((5, 6, 7), None)
    """
    if stops.max_tokens == 0:
        return (), FinishReason.LENGTH
    for count, token_id in enumerate(token_ids, start=1):
        if token_id in stops.stop_ids:
            return token_ids[:count], FinishReason.STOP
        if num_emitted + count >= stops.max_tokens:
            return token_ids[:count], FinishReason.LENGTH
    return token_ids, None
