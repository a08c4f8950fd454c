"""The native model's graph once more, in plain float64 numpy: slow, whole sequences at once, no cache, no blocks.

For tests: whatever the kernels do must be this, up to the rounding of floats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mtplx.model.native.rope import rope_tables
from mtplx.model.native.shape import GROUP, NativeShape

Doubles = npt.NDArray[np.float64]
Values = npt.NDArray[np.floating[Any]]
Weights = Mapping[str, Values]


def reference_logits(
    weights: Weights, shape: NativeShape, token_ids: Sequence[int], *, rounds_activations: bool = False
) -> Doubles:
    """Returns logits_NV of every position of one sequence; `weights` by slot, in the model's row order.

    `rounds_activations` rounds what goes into every matrix to int8 in groups, as the kernels do for block formats.
    Source: Llama (arXiv 2302.13971), with Qwen's biases and head norms.
    """
    hidden_ND = reference_hidden(weights, shape, token_ids, rounds_activations=rounds_activations)
    return _linear(hidden_ND, weights["embedding" if shape.is_tied else "head"], None, rounds_activations)


def reference_hidden(
    weights: Weights, shape: NativeShape, token_ids: Sequence[int], *, rounds_activations: bool = False
) -> Doubles:
    """Returns hidden_ND of every position after the final norm."""
    graph = _Graph(shape, rope_tables(shape.rope, shape.head_dim, len(token_ids)), rounds_activations)
    return graph.decoder(weights, weights["embedding"][np.asarray(token_ids)].astype(np.float64))


def reference_draft_hidden(
    head: Weights, shape: NativeShape, embedding: Values, trunk_hidden_ND: Doubles, token_ids: Sequence[int]
) -> Doubles:
    """Returns what a draft head makes of the last known token and of each guess: times the output head, its logits.

    `trunk_hidden_ND` is of positions 0 to N - 1; `token_ids` are N + 1 known tokens, then guesses. `shape` is of the
    head's blocks.
    """
    states, made = list(trunk_hidden_ND), []  # slot p starts from states[p - 1]
    cos, sin = rope_tables(shape.rope, shape.head_dim, len(token_ids))
    for end in range(len(states) + 1, len(token_ids) + 1):
        graph = _Graph(shape, (cos[1:end], sin[1:end]), rounds_activations=False)
        tokens_ND = embedding[np.asarray(token_ids[1:end])].astype(np.float64)
        halves = graph.norm(tokens_ND, head["enorm"]), graph.norm(np.array(states), head["hnorm"])
        out_ND = graph.decoder(head, graph.linear(np.concatenate(halves, axis=1), head["eh_proj"]))
        states.append(out_ND[-1])
        made.append(out_ND[-1])
    return np.array(made)


@dataclass(frozen=True, slots=True)
class _Graph:
    shape: NativeShape
    tables: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]  # cos and sin of the rows' positions
    rounds_activations: bool

    def decoder(self, weights: Weights, x_ND: Doubles) -> Doubles:
        """All layers and the final norm."""
        for layer in range(self.shape.num_layers):
            part = {slot.partition(".")[2]: value for slot, value in weights.items() if slot.startswith(f"{layer}.")}
            x_ND = x_ND + self.attention(part, self.norm(x_ND, part["attention_norm"]))
            x_ND = x_ND + self.mlp(part, self.norm(x_ND, part["mlp_norm"]))
        return self.norm(x_ND, weights["final_norm"])

    def attention(self, part: Weights, x_ND: Doubles) -> Doubles:
        shape, num_tokens = self.shape, len(x_ND)
        queries, keys, values = (
            self.linear(x_ND, part[name], part.get(f"{name}_bias")).reshape(num_tokens, -1, shape.head_dim)
            for name in "qkv"
        )
        if shape.has_qk_norm:
            queries, keys = self.norm(queries, part["q_norm"]), self.norm(keys, part["k_norm"])
        queries, keys = self.rotate(queries), self.rotate(keys)
        visible = _visible(num_tokens, shape.window)
        heads = []
        for head in range(shape.num_heads):
            kv_head = head // (shape.num_heads // shape.num_kv_heads)
            scores = queries[:, head] @ keys[:, kv_head].T / np.sqrt(shape.head_dim)
            scores = np.where(visible, scores, -np.inf)
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            heads.append(scores / scores.sum(axis=1, keepdims=True) @ values[:, kv_head])
        return self.linear(np.concatenate(heads, axis=1), part["o"])

    def mlp(self, part: Weights, x_ND: Doubles) -> Doubles:
        gate, up = self.linear(x_ND, part["gate"]), self.linear(x_ND, part["up"])
        return self.linear(gate / (1.0 + np.exp(-gate)) * up, part["down"])

    def linear(self, x: Doubles, weight: Values, bias: Values | None = None) -> Doubles:
        return _linear(x, weight, bias, self.rounds_activations)

    def norm(self, x: Doubles, weight: Values) -> Doubles:
        normed: Doubles = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.shape.norm_eps) * weight
        return normed

    def rotate(self, heads: Doubles) -> Doubles:
        """heads [N, H, head_dim]; element i turns together with element i + head_dim / 2."""
        cos, sin = (table[:, None, :].astype(np.float64) for table in self.tables)
        first, second = np.split(heads, 2, axis=-1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _linear(x: Doubles, weight: Values, bias: Values | None, rounds_activations: bool) -> Doubles:
    y: Doubles = (_rounded(x) if rounds_activations else x) @ weight.astype(np.float64).T
    return y if bias is None else y + bias


def _visible(num_tokens: int, window: int | None) -> npt.NDArray[np.bool_]:
    """[query, key]: keys up to the query; with a window only the last `window` of them, the query's own included."""
    distance = np.arange(num_tokens)[:, None] - np.arange(num_tokens)[None, :]
    visible: npt.NDArray[np.bool_] = (distance >= 0) & (distance < (window or num_tokens))
    return visible


def _rounded(x: Doubles) -> Doubles:
    """Every group of 32 to multiples of its largest magnitude over 127."""
    groups = x.reshape(*x.shape[:-1], -1, GROUP)
    scales = np.abs(groups).max(axis=-1, keepdims=True) / 127
    steps = np.round(np.divide(groups, scales, out=np.zeros_like(groups), where=scales > 0))
    rounded: Doubles = (steps * scales).reshape(x.shape)
    return rounded
