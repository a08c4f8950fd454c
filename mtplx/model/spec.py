"""What the rest of the program may know of a model: sizes and ids, no tensors, no library types."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Facts read from a model folder's config.json and generation_config.json."""

    architecture: str  # transformers' class name, such as LlamaForCausalLM
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int  # the context length the model was made for
    eos_ids: frozenset[int]
    sliding_window: int | None = None
    default_temperature: float | None = None  # of the generation config, None where it says nothing
    default_top_p: float | None = None
    default_top_k: int | None = None
    num_mtp_layers: int = 0  # multi-token-prediction modules that config.json names and the torch runner can use
    value_head_dim: int | None = None  # where a value isn't as wide as a key


@dataclass(frozen=True, slots=True)
class HeadInfo:
    """What guesses drafts, as the status reports it."""

    name: str  # the file's, or where else it comes from
    num_blocks: int
    draft_vocab_size: int  # ids that it can guess
    greedy_acceptance: tuple[float, ...] = ()  # conditional, by depth, as measured after its training; empty: unknown


@dataclass(frozen=True, slots=True)
class RunnerInfo:
    """What runs, as the status reports it."""

    runner: str  # torch or native
    device: str
    dtype: str
    exact: bool  # an output row's bits don't depend on the other rows; verified at start-up
    exact_note: str  # why it is or isn't, one sentence
    build: str | None = None  # of the native kernels, such as avx2
    quantization: str | None = None  # how the native runner keeps its matrices, such as q4_1+q8_0
    kv_cache_dtype: str | None = None  # of the native runner's cache; the torch runner's is `dtype`
    weights_sha256: str | None = None  # of what the weights were made from, where the runner knows it
    head: HeadInfo | None = None
