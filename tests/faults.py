"""Models that break in one place: while a step is computed, in the logits of one text, or in what comes back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from mtplx.batching.state import Row, StepPlan
from mtplx.model.runner import Logits
from tests.fakes import FakeDraftingRunner, History

PATIENCE_S = 60.0  # only a broken test waits so long: a shared machine may stand still for half a minute

# Where a row of a step is on its sequence's way.
STAGES: dict[str, Callable[[Row], bool]] = {
    "inside the prompt": lambda row: row.num_logits == 0,
    "at the prompt's end": lambda row: row.num_logits == 1 < len(row.token_ids),
    "decoding": lambda row: row.start > 0 and row.num_logits == len(row.token_ids),
    "verifying": lambda row: row.num_drafts > 0,
}
# What a broken computation leaves where numbers should be: one bad entry is enough, but for -inf.
BAD_LOGITS: dict[str, Callable[[np.ndarray], None]] = {
    "nan": lambda logits: logits.__setitem__(70, np.nan),
    "all nan": lambda logits: logits.fill(np.nan),
    "inf": lambda logits: logits.__setitem__(70, np.inf),
    "all -inf": lambda logits: logits.fill(-np.inf),
}


class SickRunner(FakeDraftingRunner):
    """Its logits after a text for which `is_sick` holds are spoilt; its head's are so whenever `is_head_sick` holds."""

    def __init__(
        self,
        is_sick: Callable[[History], bool] = lambda history: False,
        spoil: Callable[[np.ndarray], None] = BAD_LOGITS["nan"],
        *,
        is_head_sick: Callable[[History], bool] = lambda history: False,
        **fake: Any,
    ) -> None:
        super().__init__(**{"p_right": 0.6, **fake})
        self.is_sick = is_sick
        self.spoil = spoil
        self.is_head_sick = is_head_sick

    def _logits(self, history: History) -> np.ndarray:
        logits = super()._logits(history)
        if self.is_sick(history):
            self.spoil(logits)
        return logits

    def _head_logits(self, history: History) -> np.ndarray:
        logits = super()._head_logits(history)
        if self.is_head_sick(history):
            self.spoil(logits)
        return logits


class ShortRunner(FakeDraftingRunner):
    """Forgets the last line of a step's logits whenever `is_short` holds: what comes back isn't what was asked for."""

    def __init__(self, is_short: Callable[[StepPlan], bool], **fake: Any) -> None:
        super().__init__(**{"p_right": 0.6, **fake})
        self.is_short = is_short

    def run(self, plan: StepPlan) -> Logits:
        logits_WV = super().run(plan)
        return logits_WV[:-1] if self.is_short(plan) else logits_WV


def raising(is_hit: Callable[[StepPlan], bool], times: int = 1_000_000) -> Callable[[StepPlan], None]:
    """A fault for `FakeRunner`: raises in the first `times` steps for which `is_hit` holds."""
    left = [times]

    def fault(plan: StepPlan) -> None:
        if left[0] > 0 and is_hit(plan):
            left[0] -= 1
            raise RuntimeError("the model broke in /some/secret/place")

    return fault


class Hold:
    """A fault for `FakeRunner` that holds the first step for which the armed condition holds, until it is let go."""

    def __init__(self) -> None:
        self._is_hit: Callable[[StepPlan], bool] = lambda plan: False
        self._reached = threading.Event()
        self._let_go = threading.Event()

    def __call__(self, plan: StepPlan) -> None:
        if self._is_hit(plan):
            self._is_hit = lambda plan: False
            self._reached.set()
            assert self._let_go.wait(PATIENCE_S)

    def arm(self, is_hit: Callable[[StepPlan], bool]) -> None:
        self._reached.clear()
        self._let_go.clear()
        self._is_hit = is_hit

    def wait(self) -> None:
        assert self._reached.wait(PATIENCE_S), "no step came to it"

    def let_go(self) -> None:
        self._let_go.set()
