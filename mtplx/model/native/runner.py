"""The runner whose kernels are ours: batch-invariant, on CPUs, weights from a packed file, one library call a step."""

from __future__ import annotations

from collections.abc import Sequence

from mtplx.batching.state import DraftRequest, StepPlan
from mtplx.model.cache import BLOCK_SIZE
from mtplx.model.native.formats import Floats
from mtplx.model.native.head import NativeHead
from mtplx.model.native.model import NativeModel, Shared
from mtplx.model.native.step import lay_out
from mtplx.model.runner import Choose
from mtplx.model.spec import ModelSpec, RunnerInfo


class NativeRunner:
    """A model in the library, and its draft head if it has one, behind `DraftingRunner`; owned by one thread."""

    def __init__(
        self, model: NativeModel, head: NativeHead | None, shared: Shared, spec: ModelSpec, info: RunnerInfo
    ) -> None:
        self.spec = spec
        self.info = info
        self._model, self._head, self._shared = model, head, shared

    @property
    def num_blocks(self) -> int:
        return self._model.num_blocks

    @property
    def block_size(self) -> int:
        return BLOCK_SIZE

    @property
    def max_draft_depth(self) -> int:
        return self._head.max_depth if self._head else 0

    def run(self, plan: StepPlan) -> Floats:
        """See `Runner.run`.

        Raises:
            NativeCallError: the plan names a token, position or block that isn't there; nothing was written.
        """
        return self._model.step(lay_out(plan)).logits

    def run_with_argmax(self, plan: StepPlan) -> tuple[Floats, Sequence[int]]:
        """See `ArgmaxRunner.run_with_argmax`. Raises: NativeCallError."""
        computed = self._model.step(lay_out(plan))
        return computed.logits, computed.argmax

    def run_with_hidden(self, plan: StepPlan) -> tuple[Floats, Floats]:
        """As `run`, and hidden_ND of every token after the final norm, in plan order. Raises: NativeCallError."""
        computed = self._model.step(lay_out(plan), with_hidden=True)
        assert computed.hidden is not None
        return computed.logits, computed.hidden

    def draft(self, requests: Sequence[DraftRequest], choose: Choose) -> list[tuple[int, ...]]:
        """See `DraftingRunner.draft`.

        Raises:
            NativeCallError: a request names a token, position or block that isn't there.
        """
        assert self._head is not None, "the model has no draft head"
        return self._head.draft(requests, choose)

    def close(self) -> None:
        """Lets go of weights, cache and threads; nothing may be called again."""
        if self._head is not None:
            self._head.close()
        self._model.close()
        self._shared.close()
