"""How many blocks a cache gets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mtplx.errors import ConfigError
from mtplx.model.cache import BLOCK_SIZE, CacheLayout, blocks_for_tokens, choose_num_blocks
from mtplx.model.machine import available_memory_bytes, physical_cores

LAYOUT = CacheLayout(num_layers=3, num_kv_heads=2, key_width=10, value_width=6, element_bytes=4)
BLOCK = LAYOUT.bytes_per_block


def choose(*, free_blocks: float, tokens: int | None = None, max_model_len: int = 160, max_running: int = 4) -> int:
    return choose_num_blocks(
        LAYOUT,
        kv_cache_tokens=tokens,
        max_model_len=max_model_len,
        max_running=max_running,
        free_bytes=int(free_blocks * BLOCK),
    )


def test_bytes_of_a_token() -> None:
    assert LAYOUT.bytes_per_token == 3 * 2 * (10 + 6) * 4
    assert LAYOUT.bytes_per_block == 16 * LAYOUT.bytes_per_token


def test_what_lies_beside_keys_and_values_takes_room_too() -> None:
    beside = replace(LAYOUT, other_bytes=LAYOUT.bytes_per_token)
    assert beside.bytes_per_block == 2 * BLOCK
    sizes = {"kv_cache_tokens": None, "max_model_len": 160, "max_running": 4, "free_bytes": 60 * BLOCK}
    assert (choose_num_blocks(LAYOUT, **sizes), choose_num_blocks(beside, **sizes)) == (30, 15)


def test_blocks_are_rounded_up() -> None:
    assert [blocks_for_tokens(count) for count in (0, 1, BLOCK_SIZE, BLOCK_SIZE + 1)] == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("free_blocks", "expected"),
    [
        (1000, 40),  # four sequences of ten blocks
        (60, 30),  # half of what is free
        (18, 10),  # one sequence, though that is more than half
        (8, 7),  # less than one sequence: nine tenths
    ],
)
def test_size_by_free_memory(free_blocks: float, expected: int) -> None:
    assert choose(free_blocks=free_blocks) == expected


def test_size_as_asked_for() -> None:
    assert choose(free_blocks=1000, tokens=33) == 3


@pytest.mark.parametrize("tokens", [None, 1600])
def test_what_does_not_fit_is_refused(tokens: int | None) -> None:
    with pytest.raises(ConfigError, match="lower --kv-cache-tokens"):
        choose(free_blocks=0.5, tokens=tokens)


def test_the_machine_has_a_core_and_some_memory() -> None:
    assert physical_cores() >= 1
    assert available_memory_bytes() > 2**20
