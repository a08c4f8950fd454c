"""The runner whose kernels are ours: batch-invariant, on CPUs, weights mapped from a file, one library call a step."""

from __future__ import annotations

from mtplx.batching.state import StepPlan
from mtplx.model.cache import BLOCK_SIZE
from mtplx.model.native.formats import Floats
from mtplx.model.native.model import NativeModel
from mtplx.model.native.step import lay_out
from mtplx.model.spec import ModelSpec, RunnerInfo


class NativeRunner:
    """A model in the library behind the `Runner` protocol; owned by one thread."""

    def __init__(self, model: NativeModel, spec: ModelSpec, info: RunnerInfo, num_blocks: int) -> None:
        self.spec = spec
        self.info = info
        self._model = model
        self._num_blocks = num_blocks

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def block_size(self) -> int:
        return BLOCK_SIZE

    def run(self, plan: StepPlan) -> Floats:
        """See `Runner.run`.

        Raises:
            NativeCallError: the plan names a token, position or block that isn't there; nothing was written.
        """
        return self._model.step(lay_out(plan))[0]

    def run_with_hidden(self, plan: StepPlan) -> tuple[Floats, Floats]:
        """As `run`, and hidden_ND of every token after the final norm, in plan order. Raises: NativeCallError."""
        logits_WV, hidden_ND = self._model.step(lay_out(plan), with_hidden=True)
        assert hidden_ND is not None
        return logits_WV, hidden_ND

    def close(self) -> None:
        """Lets go of weights, cache and threads; `run` may not be called again."""
        self._model.close()
