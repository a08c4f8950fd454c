"""The places of a model that weights go into, and what safetensors, GGUF and head files call what belongs there.

A slot's name is `embedding`, `head`, `final_norm`, or a layer's such as `3.q` and `3.mlp_norm`; a draft head's also
`eh_proj`, `enorm`, `hnorm`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mtplx.model.native.shape import NativeShape

LAYER_MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
LAYER_VECTORS = ("attention_norm", "mlp_norm", "q_bias", "k_bias", "v_bias", "q_norm", "k_norm")
EMBEDDINGS = frozenset({"embedding", "head"})

_SAFETENSORS: Mapping[str, str] = {
    "embedding": "model.embed_tokens.weight",
    "head": "lm_head.weight",
    "final_norm": "model.norm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "attention_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
}
_GGUF: Mapping[str, str] = {
    "embedding": "token_embd.weight",
    "head": "output.weight",
    "final_norm": "output_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "attention_norm": "attn_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
}


@dataclass(frozen=True, slots=True)
class Slot:
    """`shape` is [outputs, inputs] of a matrix, [size] of a norm or bias."""

    name: str
    shape: tuple[int, ...]

    @property
    def is_matrix(self) -> bool:
        return len(self.shape) == 2

    @property
    def part(self) -> str:
        """The name without the layer's number."""
        return self.name.rpartition(".")[2]


def model_slots(shape: NativeShape) -> list[Slot]:
    """Every slot of the model in the order in which a step reads them; a tied head has none of its own."""
    slots = [Slot("embedding", (shape.vocab, shape.hidden))]
    parts = _layer_shapes(shape)
    slots += [Slot(f"{layer}.{part}", size) for layer in range(shape.num_layers) for part, size in parts.items()]
    slots.append(Slot("final_norm", (shape.hidden,)))
    if not shape.is_tied:
        slots.append(Slot("head", (shape.vocab, shape.hidden)))
    return slots


def safetensors_name(slot: Slot) -> str:
    """`3.q` as `model.layers.3.self_attn.q_proj.weight`."""
    layer = slot.name.rpartition(".")[0]
    return f"model.layers.{layer}.{_SAFETENSORS[slot.part]}" if layer else _SAFETENSORS[slot.part]


def gguf_name(slot: Slot) -> str:
    """`3.q` as `blk.3.attn_q.weight`."""
    layer = slot.name.rpartition(".")[0]
    return f"blk.{layer}.{_GGUF[slot.part]}" if layer else _GGUF[slot.part]


def head_slots(shape: NativeShape) -> list[Slot]:
    """Every slot of a draft head whose blocks are layers of `shape`, but for a vocabulary of its own."""
    hidden = shape.hidden
    slots = [Slot("enorm", (hidden,)), Slot("hnorm", (hidden,)), Slot("eh_proj", (hidden, 2 * hidden))]
    parts = _layer_shapes(shape)
    slots += [Slot(f"{block}.{part}", size) for block in range(shape.num_layers) for part, size in parts.items()]
    return [*slots, Slot("final_norm", (hidden,))]


def head_file_name(slot: Slot) -> str:
    """`0.q` as `blocks.0.self_attn.q_proj.weight`, in the head file."""
    block = slot.name.rpartition(".")[0]
    if block:
        return f"blocks.{block}.{_SAFETENSORS[slot.part]}"
    return "norm.weight" if slot.name == "final_norm" else f"{slot.name}.weight"


def _layer_shapes(shape: NativeShape) -> dict[str, tuple[int, ...]]:
    hidden, intermediate, query, key = shape.hidden, shape.intermediate, shape.query_width, shape.key_width
    shapes: dict[str, tuple[int, ...]] = {"attention_norm": (hidden,)}
    shapes |= {"q": (query, hidden), "k": (key, hidden), "v": (key, hidden)}
    if shape.has_qkv_bias:
        shapes |= {"q_bias": (query,), "k_bias": (key,), "v_bias": (key,)}
    if shape.has_qk_norm:
        shapes |= {"q_norm": (shape.head_dim,), "k_norm": (shape.head_dim,)}
    shapes |= {"o": (hidden, query), "mlp_norm": (hidden,)}
    shapes |= {"gate": (intermediate, hidden), "up": (intermediate, hidden), "down": (hidden, intermediate)}
    return shapes
