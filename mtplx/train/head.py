"""The draft head as PyTorch trains it: DeepSeek's layout over a frozen embedding and output head.

Legend: B passages, L slots, H hidden size, R draft vocabulary, N attention heads, D head size, P positions.

Slot p of a passage is made of the model's hidden state of position p - 1 and token p; what it gives stands for the
hidden state of position p, so that it guesses token p + 1. At depth d the state comes from the head itself, d times in
a row, as it will when it drafts:

    depth 0   slot p of h(p-1), x(p)      sees depth 0's slots up to p
    depth 1   slot p of g0(p-1), x(p)     sees depth 0's slots up to p - 1, and itself
    depth 2   slot p of g1(p-1), x(p)     sees depth 0's slots up to p - 2, depth 1's slot p - 1, and itself

Source: DeepSeek-V3 (arXiv 2412.19437) section 2.2; training on own outputs as in EAGLE-3 (arXiv 2503.01840).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from mtplx.model.native.rope import rope_tables
from mtplx.model.native.shape import NativeShape


@dataclass(frozen=True, slots=True)
class KeysValues:
    """Keys and values [B, N, L, D] of every slot at one depth; keys are rotated."""

    keys: Tensor
    values: Tensor


class Block(nn.Module):
    """One decoder layer of the base model's shape; parameters are named as in its checkpoint."""

    def __init__(self, shape: NativeShape) -> None:
        super().__init__()
        self._shape = shape
        hidden, kv_width = shape.hidden, shape.num_kv_heads * shape.head_dim
        bias = shape.has_qkv_bias
        self.input_layernorm = nn.RMSNorm(hidden, shape.norm_eps)
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": nn.Linear(hidden, shape.query_width, bias=bias),
                "k_proj": nn.Linear(hidden, kv_width, bias=bias),
                "v_proj": nn.Linear(hidden, kv_width, bias=bias),
                "o_proj": nn.Linear(shape.query_width, hidden, bias=False),
            }
        )
        if shape.has_qk_norm:
            self.self_attn["q_norm"] = nn.RMSNorm(shape.head_dim, shape.norm_eps)
            self.self_attn["k_norm"] = nn.RMSNorm(shape.head_dim, shape.norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(hidden, shape.norm_eps)
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(hidden, shape.intermediate, bias=False),
                "up_proj": nn.Linear(hidden, shape.intermediate, bias=False),
                "down_proj": nn.Linear(shape.intermediate, hidden, bias=False),
            }
        )

    def forward(self, x_BLH: Tensor, rope: tuple[Tensor, Tensor], earlier: list[KeysValues]) -> Tensor:
        """The layer's output; appends this depth's keys and values to `earlier`, which holds those of lesser depths."""
        normed_BLH = self.input_layernorm(x_BLH)
        query = self._heads(normed_BLH, "q_proj", "q_norm")
        keys = self._heads(normed_BLH, "k_proj", "k_norm")
        values = self._heads(normed_BLH, "v_proj")
        group = self._shape.num_heads // self._shape.num_kv_heads
        earlier.append(KeysValues(rotate(keys, rope).repeat_interleave(group, 1), values.repeat_interleave(group, 1)))
        mixed_BNLD = attend(rotate(query, rope), earlier)
        x_BLH = x_BLH + self.self_attn["o_proj"](mixed_BNLD.transpose(1, 2).flatten(2))
        normed_BLH = self.post_attention_layernorm(x_BLH)
        gate_BLI = functional.silu(self.mlp["gate_proj"](normed_BLH))
        added_BLH: Tensor = self.mlp["down_proj"](gate_BLI * self.mlp["up_proj"](normed_BLH))
        return x_BLH + added_BLH

    def _heads(self, x_BLH: Tensor, projection: str, norm: str = "") -> Tensor:
        """The projection [B, heads, L, D], normed where the shape has such a norm."""
        heads_BLND: Tensor = self.self_attn[projection](x_BLH).unflatten(-1, (-1, self._shape.head_dim))
        if norm in self.self_attn:
            heads_BLND = self.self_attn[norm](heads_BLND.float())
        return heads_BLND.transpose(1, 2)


class DraftHead(nn.Module):
    """The trainable part of a head; its parameters' names are the head file's."""

    def __init__(self, shape: NativeShape, num_blocks: int, max_positions: int) -> None:
        super().__init__()
        self.enorm = nn.RMSNorm(shape.hidden, shape.norm_eps)
        self.hnorm = nn.RMSNorm(shape.hidden, shape.norm_eps)
        self.eh_proj = nn.Linear(2 * shape.hidden, shape.hidden, bias=False)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(num_blocks))
        self.norm = nn.RMSNorm(shape.hidden, shape.norm_eps)
        cos_PD, sin_PD = rope_tables(shape.rope, shape.head_dim, max_positions)
        self._cos_PD, self._sin_PD = torch.from_numpy(cos_PD), torch.from_numpy(sin_PD)

    def begin(self) -> list[list[KeysValues]]:
        """What `forward` keeps between depths: nothing yet, for each block."""
        return [[] for _ in self.blocks]

    def forward(self, hidden_BLH: Tensor, embedded_BLH: Tensor, memory: list[list[KeysValues]]) -> Tensor:
        """States [B, L, H], after the last norm, of slots 1 to L at the next depth of `memory`, which grows.

        `hidden_BLH` holds for each slot the state of the position before it, `embedded_BLH` its own token.
        """
        length = hidden_BLH.shape[1]
        rope = self._cos_PD[1 : 1 + length], self._sin_PD[1 : 1 + length]
        # The stream between the layers stays float32 under autocast: sums are kept, and norms run fused.
        x_BLH = self.eh_proj(torch.cat((self.enorm(embedded_BLH), self.hnorm(hidden_BLH)), dim=-1)).float()
        for block, earlier in zip(self.blocks, memory, strict=True):
            x_BLH = block(x_BLH, rope, earlier)
        state_BLH: Tensor = self.norm(x_BLH)
        return state_BLH


def rotate(x_BNLD: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates pairs (i, i + D/2) by the tables [L, D/2]."""
    cos, sin = rope
    low, high = x_BNLD.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x_BNLD.dtype)


def attend(query_BNLD: Tensor, depths: list[KeysValues]) -> Tensor:
    """Attention of the last of `depths`, each slot over what it sees (module docstring); [B, N, L, D]."""
    first, later = depths[0], depths[1:]
    if not later:
        return functional.scaled_dot_product_attention(query_BNLD, first.keys, first.values, is_causal=True)
    depth, length, scale = len(later), query_BNLD.shape[2], query_BNLD.shape[3] ** -0.5
    scores_BNLL = query_BNLD @ first.keys.transpose(-1, -2)
    sees_LL = torch.ones(length, length, dtype=torch.bool).tril(-depth)
    scores = [scores_BNLL.masked_fill(~sees_LL, float("-inf"))]
    shifted = [
        KeysValues(kv.keys.roll(depth - index, 2), kv.values.roll(depth - index, 2))
        for index, kv in enumerate(later, start=1)
    ]
    scores += [(query_BNLD * kv.keys).sum(-1, keepdim=True) for kv in shifted]
    weights = (torch.cat(scores, dim=-1).float() * scale).softmax(-1).to(query_BNLD.dtype)
    mixed_BNLD: Tensor = weights[..., :length] @ first.values
    for index, kv in enumerate(shifted):
        mixed_BNLD = mixed_BNLD + weights[..., length + index, None] * kv.values
    return mixed_BNLD
