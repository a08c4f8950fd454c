"""The runner whose model definition is transformers' and whose cache, batching and attention are ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.nn.functional import pad

from mtplx.batching.state import DraftRequest, StepPlan
from mtplx.model.cache import BLOCK_SIZE
from mtplx.model.runner import Choose, Logits
from mtplx.model.spec import ModelSpec, RunnerInfo
from mtplx.model.torch.attention import Attend, PagedStep
from mtplx.model.torch.batch import FlatBatch, cut_into_tiles, flatten
from mtplx.model.torch.group_attention import GroupAttention
from mtplx.model.torch.head import TorchHead
from mtplx.model.torch.output import OutputHead, to_logits
from mtplx.model.torch.paged import PagedCache
from mtplx.model.torch.row_attention import RowAttention

TILE_ROWS = 16


class TorchRunner:
    """A causal language model with its paged cache, one forward pass at a time.

    With `tiled` every forward pass, of the trunk and of the output head, has exactly TILE_ROWS rows, whatever the plan:
    the libraries then choose the same kernels every time. Without it a plan is one forward pass. A draft head only
    watches: logits and cache are those of a runner without one.
    """

    def __init__(
        self,
        model: Any,
        spec: ModelSpec,
        info: RunnerInfo,
        cache: PagedCache,
        *,
        tiled: bool,
        draft_head: TorchHead | None = None,
    ) -> None:
        self.spec = spec
        self.info = info
        self._trunk = model.get_decoder()
        self._output: OutputHead | None = OutputHead.of(model)
        self._cache: PagedCache | None = cache
        self._tiled = tiled
        self._draft_head = draft_head
        self._num_blocks = cache.num_blocks
        self._no_logits_0V = torch.zeros(0, spec.vocab_size, dtype=model.dtype)

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def block_size(self) -> int:
        return BLOCK_SIZE

    @property
    def max_draft_depth(self) -> int:
        """See `DraftingRunner.max_draft_depth`."""
        return 0 if self._draft_head is None else self._draft_head.max_depth

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> Logits:
        """See `Runner.run`; float64 for a float64 model, else float32."""
        assert self._cache is not None, "the runner is closed"
        hidden_WD = self._run_tiles(plan, self._cache) if self._tiled else self._run_whole(plan, self._cache)
        return to_logits(self._no_logits_0V if hidden_WD is None else self._run_output(hidden_WD))

    @torch.inference_mode()
    def draft(self, requests: Sequence[DraftRequest], choose: Choose) -> list[tuple[int, ...]]:
        """See `DraftingRunner.draft`."""
        assert self._draft_head is not None, "there is no head, or the runner is closed"
        return self._draft_head.draft(requests, choose)

    def close(self) -> None:
        """Lets go of weights and caches; `run` and `draft` may not be called again."""
        self._trunk = self._output = self._cache = self._draft_head = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _run_whole(self, plan: StepPlan, cache: PagedCache) -> torch.Tensor | None:
        if not plan.rows:
            return None
        batch = flatten(plan)
        hidden_ND = self._run_trunk(batch, cache, GroupAttention(cache, batch))
        return _take(hidden_ND, batch)

    def _run_tiles(self, plan: StepPlan, cache: PagedCache) -> torch.Tensor | None:
        """In order: a later tile's tokens read what an earlier tile wrote."""
        tiles = cut_into_tiles(plan, TILE_ROWS, cache.spare_block)
        parts = [_take(self._run_trunk(tile, cache, RowAttention(cache, tile)), tile) for tile in tiles]
        return _joined(part for part in parts if part is not None)

    def _run_trunk(self, batch: FlatBatch, cache: PagedCache, attend: Attend) -> torch.Tensor:
        """Returns hidden_ND after the final norm, and writes the batch's cache entries."""
        step = PagedStep(cache, torch.from_numpy(batch.slots).to(cache.device), attend)
        output = self._trunk(
            input_ids=torch.from_numpy(batch.token_ids).to(cache.device).unsqueeze(0),
            position_ids=torch.from_numpy(batch.positions).to(cache.device).unsqueeze(0),
            use_cache=False,
            paged=step,
        )
        hidden_ND: torch.Tensor = output.last_hidden_state[0]
        if self._draft_head is not None:
            self._draft_head.keep(step.slots, hidden_ND)
        return hidden_ND

    def _run_output(self, hidden_WD: torch.Tensor) -> torch.Tensor:
        assert self._output is not None
        if not self._tiled:
            return self._output(hidden_WD)
        num_wanted = len(hidden_WD)
        padded = pad(hidden_WD, (0, 0, 0, -num_wanted % TILE_ROWS))
        logits_WV = _joined(map(self._output, padded.view(-1, TILE_ROWS, padded.shape[1]).unbind(0)))
        assert logits_WV is not None
        return logits_WV[:num_wanted]


def _take(hidden_ND: torch.Tensor, batch: FlatBatch) -> torch.Tensor | None:
    if not len(batch.wanted):
        return None
    return hidden_ND.index_select(0, torch.from_numpy(batch.wanted).to(hidden_ND.device))


def _joined(parts: Iterable[torch.Tensor]) -> torch.Tensor | None:
    """Returns the parts as one tensor, without a copy where there is only one; None where there is none."""
    tensors = list(parts)
    if len(tensors) > 1:
        return torch.cat(tensors)
    return tensors[0] if tensors else None
