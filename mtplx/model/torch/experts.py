"""Mixtures of experts in exact mode: every expert that any row wants sees all rows, so that no call's shape changes.

The library gives an expert only the rows that chose it; how many those are depends on who shares the batch, and with it
which kernel computes them. Letters of shapes: N flat tokens, D hidden, F of an expert,
K experts chosen by each token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import linear
from transformers.integrations.moe import ExpertsInterface

EXPERTS_NAME = "mtplx_tiled"


def register_experts() -> None:
    """Makes `experts_implementation=EXPERTS_NAME` known to transformers."""
    ExpertsInterface.register(EXPERTS_NAME, tiled_experts)


def tiled_experts(
    experts: Any, hidden_ND: torch.Tensor, chosen_NK: torch.Tensor, weights_NK: torch.Tensor
) -> torch.Tensor:
    """Returns out_ND, the weighted sum of each row's chosen experts, added up by rising expert number."""
    out_ND = torch.zeros_like(hidden_ND)
    for expert in sorted(set(chosen_NK.flatten().tolist())):
        gate_NF, up_NF = linear(hidden_ND, experts.gate_up_proj[expert]).chunk(2, dim=-1)
        part_ND = linear(experts.act_fn(gate_NF) * up_NF, experts.down_proj[expert])
        is_chosen_NK = chosen_NK == expert
        weight_N1 = weights_NK.where(is_chosen_NK, 0).sum(dim=-1, keepdim=True)
        # Rows that didn't choose this expert get exactly zero, also where it gave them infinity or NaN.
        part_ND = (part_ND * weight_N1).where(is_chosen_NK.any(dim=-1, keepdim=True), 0)
        out_ND += part_ND.to(out_ND.dtype)
    return out_ND
