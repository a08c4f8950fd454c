"""From hidden states to logits: the model's output head, or some rows of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import linear

from mtplx.model.runner import Logits


@dataclass(frozen=True, slots=True)
class OutputHead:
    """Letters of shapes: N tokens, D hidden, V vocabulary or a part of it."""

    weight: torch.Tensor  # of V, D
    bias: torch.Tensor | None  # of V
    softcap: float | None

    @classmethod
    def of(cls, model: Any) -> OutputHead:
        """The output head of a causal language model of transformers."""
        layer = model.get_output_embeddings()
        return cls(layer.weight, layer.bias, getattr(model.config, "final_logit_softcapping", None))

    def rows(self, ids: torch.Tensor) -> OutputHead:
        """The head for these token ids alone, as a copy."""
        bias = None if self.bias is None else self.bias[ids]
        return OutputHead(self.weight[ids], bias, self.softcap)

    def __call__(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        logits_NV = linear(hidden_ND, self.weight, self.bias)
        if self.softcap is not None:
            logits_NV = torch.tanh(logits_NV / self.softcap) * self.softcap
        return logits_NV


def to_logits(logits_NV: torch.Tensor) -> Logits:
    """As the sampler takes them: on the CPU, float64 for a float64 model, else float32."""
    if logits_NV.dtype != torch.float64:
        logits_NV = logits_NV.float()
    logits: Logits = logits_NV.cpu().numpy()
    assert logits.dtype in (np.float32, np.float64)
    return logits
