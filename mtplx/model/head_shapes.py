"""Which tensors the head of a model has, by name and shape; reads no file."""

from __future__ import annotations

from collections.abc import Mapping

from mtplx.model.spec import ModelSpec

DRAFT_VOCAB = "draft_vocab"

Shapes = Mapping[str, tuple[int, ...]]


def wrong_tensors(found: Shapes, spec: ModelSpec, num_blocks: int) -> str | None:
    """Says what keeps these tensors from being a head of `num_blocks` blocks for the model; None if nothing does.

    Biases and head norms, which only some families' layers have, may be there or not: what the model's have, its runner
    knows.
    """
    gate = found.get("blocks.0.mlp.gate_proj.weight", ())
    required = required_shapes(spec, num_blocks, intermediate=gate[0] if gate else 0)
    for name, shape in required.items():
        if name not in found:
            return f"it lacks {name}"
        if found[name] != shape:
            return f"{name} has shape {list(found[name])} instead of {list(shape)}"
    optional = _optional_shapes(spec, num_blocks)
    if DRAFT_VOCAB in found and len(found[DRAFT_VOCAB]) != 1:
        return f"{DRAFT_VOCAB} has shape {list(found[DRAFT_VOCAB])} instead of one dimension"
    for name, shape in found.items():
        if name not in required and name != DRAFT_VOCAB and optional.get(name) != shape:
            return f"there is no place for {name} of shape {list(shape)}"
    return None


def required_shapes(spec: ModelSpec, num_blocks: int, *, intermediate: int) -> dict[str, tuple[int, ...]]:
    """The shapes that every head for this model has."""
    hidden, queries, keys = spec.hidden_size, spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": (hidden,) for name in ("enorm", "hnorm", "norm")}
    shapes["eh_proj.weight"] = (hidden, 2 * hidden)
    for block in range(num_blocks):
        shapes |= {
            f"blocks.{block}.input_layernorm.weight": (hidden,),
            f"blocks.{block}.self_attn.q_proj.weight": (queries, hidden),
            f"blocks.{block}.self_attn.k_proj.weight": (keys, hidden),
            f"blocks.{block}.self_attn.v_proj.weight": (keys, hidden),
            f"blocks.{block}.self_attn.o_proj.weight": (hidden, queries),
            f"blocks.{block}.post_attention_layernorm.weight": (hidden,),
            f"blocks.{block}.mlp.gate_proj.weight": (intermediate, hidden),
            f"blocks.{block}.mlp.up_proj.weight": (intermediate, hidden),
            f"blocks.{block}.mlp.down_proj.weight": (hidden, intermediate),
        }
    return shapes


def _optional_shapes(spec: ModelSpec, num_blocks: int) -> dict[str, tuple[int, ...]]:
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {}
    for block in range(num_blocks):
        attention = f"blocks.{block}.self_attn"
        shapes |= {f"{attention}.{part}_norm.weight": (spec.head_dim,) for part in "qk"}
        shapes |= {f"{attention}.{part}_proj.bias": (keys,) for part in "kv"}
        shapes |= {f"{attention}.q_proj.bias": (queries,), f"{attention}.o_proj.bias": (spec.hidden_size,)}
    return shapes
