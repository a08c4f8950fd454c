"""The C interface of src/mtplx_native.h in ctypes: its structs, field by field, and the types of its functions."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, ClassVar

ABI_VERSION = 6

Fields = list[tuple[str, Any]]


class Weight(ctypes.Structure):
    """A packed matrix [num_rows, num_cols]."""

    _fields_: ClassVar[Fields] = [
        ("format", c_int32),
        ("num_rows", c_int32),
        ("num_cols", c_int32),
        ("reserved", c_int32),
        ("data", c_void_p),
    ]


class Cache(ctypes.Structure):
    """One layer's keys and values."""

    _fields_: ClassVar[Fields] = [
        ("dtype", c_int32),
        ("num_blocks", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("keys", c_void_p),
        ("values", c_void_p),
    ]


class Rows(ctypes.Structure):
    """Which tokens are computed, and where their keys are."""

    _fields_: ClassVar[Fields] = [
        ("num_tokens", c_int32),
        ("num_sequences", c_int32),
        ("positions", c_void_p),
        ("sequence_of", c_void_p),
        ("block_begin", c_void_p),
        ("block_ids", c_void_p),
    ]


class Layer(ctypes.Structure):
    """One decoder layer's weights."""

    _fields_: ClassVar[Fields] = [
        ("q", Weight),
        ("k", Weight),
        ("v", Weight),
        ("o", Weight),
        ("gate", Weight),
        ("up", Weight),
        ("down", Weight),
        ("attention_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("q_bias", c_void_p),
        ("k_bias", c_void_p),
        ("v_bias", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
    ]


class Config(ctypes.Structure):
    """A model or draft head: sizes, layers, tables, and the memory of its cache."""

    _fields_: ClassVar[Fields] = [
        ("num_layers", c_int32),
        ("hidden", c_int32),
        ("intermediate", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("vocab", c_int32),
        ("window", c_int32),
        ("cache_dtype", c_int32),
        ("num_cache_blocks", c_int32),
        ("num_positions", c_int32),
        ("norm_eps", c_float),
        ("attention_scale", c_float),
        ("reserved", c_int32),
        ("layers", POINTER(Layer)),
        ("embedding", Weight),
        ("head", Weight),
        ("eh_proj", Weight),
        ("enorm", c_void_p),
        ("hnorm", c_void_p),
        ("final_norm", c_void_p),
        ("rope_cos", c_void_p),
        ("rope_sin", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("hidden_states", c_void_p),
    ]


class Step(ctypes.Structure):
    """One step of a model."""

    _fields_: ClassVar[Fields] = [
        ("rows", Rows),
        ("num_wanted", c_int32),
        ("reserved", c_int32),
        ("token_ids", c_void_p),
        ("inputs", c_void_p),
        ("wanted", c_void_p),
        ("logits", c_void_p),
        ("argmax", c_void_p),
        ("hidden", c_void_p),
    ]


_INT, _PTR = c_int32, c_void_p
_WEIGHT, _CACHE, _ROWS = POINTER(Weight), POINTER(Cache), POINTER(Rows)

# Name without mtplx_: type of the result, types of the arguments. Plain addresses go as c_void_p.
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "abi_version": (_INT, []),
    "layout_version": (_INT, []),
    "build_name": (c_char_p, []),
    "source_hash": (c_char_p, []),
    "machine_runs": (_INT, [c_char_p]),
    "message": (c_char_p, [_INT]),
    "packed_bytes": (c_size_t, [_INT, _INT, _INT]),
    "pack": (_INT, [_INT, _INT, _INT, _PTR, _PTR, _PTR]),
    "unpack_rows": (_INT, [_WEIGHT, _PTR, _INT, _PTR]),
    "pool_create": (_PTR, [_INT]),
    "pool_destroy": (None, [_PTR]),
    "linear": (_INT, [_PTR, _WEIGHT, _PTR, _PTR, _INT, _PTR]),
    "rms_norm": (_INT, [_PTR, _PTR, c_float, _PTR, _INT, _INT, _PTR]),
    "cache_write": (_INT, [_PTR, _CACHE, _ROWS, _PTR, _PTR]),
    "attention": (_INT, [_PTR, _CACHE, _ROWS, _INT, _INT, c_float, _PTR, _PTR]),
    "model_create": (_INT, [POINTER(Config), _PTR, POINTER(_PTR)]),
    "model_destroy": (None, [_PTR]),
    "model_step": (_INT, [_PTR, POINTER(Step)]),
    "read_sum": (c_uint64, [_PTR, _PTR, c_size_t]),
    "draw_candidates": (_INT, [_PTR, _INT, _PTR, c_uint64, c_uint32, c_uint32, _PTR, _PTR]),
    "draw_candidates_of_logits": (
        _INT,
        [_PTR, _INT, c_double, _PTR, c_uint64, c_uint32, c_uint32, _PTR, _PTR, _PTR],
    ),
    "survives": (_INT, [_PTR, _INT, c_double, _INT, c_double, c_double]),
}


def open_functions(path: str) -> ctypes.CDLL:
    """Loads a library and gives its functions their types.

    Raises:
        OSError: it can't be loaded, lacks a function, or speaks another version of the interface.
    """
    library = ctypes.CDLL(path)
    try:
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, f"mtplx_{name}")
            function.restype, function.argtypes = result, arguments
    except AttributeError as error:
        raise OSError(str(error)) from None
    version = library.mtplx_abi_version()
    if version != ABI_VERSION:
        raise OSError(f"{path} speaks version {version} of the interface, not {ABI_VERSION}")
    return library
