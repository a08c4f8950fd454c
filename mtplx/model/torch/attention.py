"""The one attention function that every model definition of transformers calls here: it writes the new keys and values
into the paged cache and lets the step's own strategy read them back.

Letters of shapes: N flat tokens, H query heads, K key/value heads, G = H / K, D width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn
from transformers import AttentionInterface

from mtplx.model.torch.paged import PagedCache

ATTENTION_NAME = "mtplx_paged"


class Attend(Protocol):
    """Reads one layer's cache for every token of a batch, the batch's own tokens included."""

    def __call__(self, layer: int, query_NHD: torch.Tensor, scale: float, window: int | None) -> torch.Tensor:
        """Returns out_NHD; a token at position p sees the positions from p - window + 1, or from 0, to p."""
        ...


@dataclass(frozen=True, slots=True)
class PagedStep:
    """What one forward pass hands to every layer, through the model's keyword argument `paged`."""

    cache: PagedCache
    slots: torch.Tensor  # of N
    attend: Attend


def register_attention() -> None:
    """Makes `attn_implementation=ATTENTION_NAME` known to transformers.

    No mask function goes with it: transformers then makes no mask at all, which saves time and isn't missed, since who
    sees whom follows from the rows' positions alone.
    """
    AttentionInterface.register(ATTENTION_NAME, paged_attention)


def paged_attention(
    module: nn.Module,
    query_1HND: torch.Tensor,
    key_1KND: torch.Tensor,
    value_1KND: torch.Tensor,
    attention_mask: None,
    *,
    paged: PagedStep,
    scaling: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **unused: object,
) -> tuple[torch.Tensor, None]:
    """Returns out_1NHD, as transformers expects of an attention function; writes the layer's cache entries."""
    assert attention_mask is None, "visibility follows from positions, no mask is expected"
    assert softcap is None, "no supported family caps its attention scores"
    layer = module.layer_idx
    assert isinstance(layer, int)
    paged.cache.write(layer, paged.slots, key_1KND[0].transpose(0, 1), value_1KND[0].transpose(0, 1))
    out_NHD = paged.attend(layer, query_1HND[0].transpose(0, 1), scaling, sliding_window)
    return out_NHD.unsqueeze(0), None
