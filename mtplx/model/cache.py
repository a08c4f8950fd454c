"""How a paged key/value cache is laid out and how large it should be: arithmetic only, the tensors are the runner's.

Kinds of layers it can hold: full attention and sliding-window attention, whose keys and values stay what they are once
written, so that a sequence is cropped by a counter alone. A recurrent layer's state (linear attention, Mamba) would
need a copy for every position to return to; models with such layers are refused.

    position      0 .. 15   16 .. 31   32 ..          slot of position p = block_ids[p // 16] * 16 + p % 16
    block_ids     (    7  ,     2    ,    9  )        blocks 0 .. num_blocks - 1 are the scheduler's; block num_blocks
                                                      is the spare one, in no sequence's table
"""

from __future__ import annotations

from dataclasses import dataclass

from mtplx.errors import ConfigError

BLOCK_SIZE = 16  # tokens
CACHED_LAYER_KINDS = frozenset({"full_attention", "sliding_attention"})


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """One token's entry: per layer a key [num_kv_heads, key_width] and a value [num_kv_heads, value_width].

    `other_bytes` is what lies beside them in memory of its own: a draft head's entry, the hidden state that it reads.
    """

    num_layers: int
    num_kv_heads: int
    key_width: int
    value_width: int
    element_bytes: int
    other_bytes: int = 0

    @property
    def bytes_per_token(self) -> int:
        widths = self.key_width + self.value_width
        return self.num_layers * self.num_kv_heads * widths * self.element_bytes + self.other_bytes

    @property
    def bytes_per_block(self) -> int:
        return self.bytes_per_token * BLOCK_SIZE


def blocks_for_tokens(num_tokens: int) -> int:
    """Returns how many blocks hold `num_tokens` tokens of one sequence."""
    return -(-num_tokens // BLOCK_SIZE)


def choose_num_blocks(
    layout: CacheLayout, *, kv_cache_tokens: int | None, max_model_len: int, max_running: int, free_bytes: int
) -> int:
    """Returns the number of blocks: what `kv_cache_tokens` asks for, rounded up, else by memory.

    By memory: `max_running` sequences of full length, but no more than half of `free_bytes`; where that half holds less
    than one full sequence, one full sequence, but no more than nine tenths of `free_bytes`.

    Raises:
        ConfigError: nine tenths of `free_bytes` don't hold what was asked for, or not even one block.
    """
    most = free_bytes * 9 // 10 // layout.bytes_per_block
    half = free_bytes // 2 // layout.bytes_per_block
    if kv_cache_tokens is None:
        one_sequence = blocks_for_tokens(max_model_len)
        wanted = max(min(max_running * one_sequence, half), min(one_sequence, most), 1)
    else:
        wanted = blocks_for_tokens(kv_cache_tokens)
    if wanted > most:
        raise ConfigError(
            f"a cache of {wanted * BLOCK_SIZE} tokens takes {wanted * layout.bytes_per_block / 2**20:.0f} MiB, "
            f"{free_bytes / 2**20:.0f} MiB are free: lower --kv-cache-tokens",
            "--kv-cache-tokens",
        )
    return wanted
