"""The protocol between the engine and whatever computes logits."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from mtplx.batching.state import StepPlan
from mtplx.model.spec import ModelSpec, RunnerInfo

Logits = npt.NDArray[np.float32] | npt.NDArray[np.float64]


class Runner(Protocol):
    """A model with its paged cache. Owned by one thread."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def info(self) -> RunnerInfo: ...

    @property
    def num_blocks(self) -> int: ...

    @property
    def block_size(self) -> int:
        """Tokens in a cache block."""
        ...

    def run(self, plan: StepPlan) -> Logits:
        """Computes every row, writes its cache entries and returns logits_WV, row-major in plan order.

        W is `plan.num_logits`: for each row the logits of its last `num_logits` tokens, in token order. The result is
        the caller's: a later call doesn't change it. Running the same plan again gives the same cache and logits.

        Raises:
            Exception: anything; the caller treats it as this step's failure.
        """
        ...

    def close(self) -> None: ...
