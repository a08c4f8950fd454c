"""One loaded build of the kernels: the plain functions with Python's types, threads, and what the library refuses."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mtplx.errors import MtplxError
from mtplx.model.native.abi import Weight, open_functions

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]


class NativeUnavailableError(MtplxError):
    """There is no usable build here; the message says why, in one sentence."""


class NativeCallError(MtplxError):
    """The library refused a call; the message is its own."""


@dataclass(frozen=True, slots=True)
class NativeLibrary:
    """One loaded build. `functions` are those of abi.py; the methods give the plain ones Python's types."""

    build: str
    note: str  # why no better build runs here; empty when there is nothing to say
    functions: ctypes.CDLL

    @property
    def layout_version(self) -> int:
        """Changes when packed weights of an older library can't be read any more."""
        return int(self.functions.mtplx_layout_version())

    @property
    def source_hash(self) -> str:
        return str(self.functions.mtplx_source_hash().decode())

    def check(self, status: int) -> None:
        """Raises NativeCallError for any status but success."""
        if status:
            raise NativeCallError(f"the native library refused: {self.functions.mtplx_message(status).decode()}")

    def packed_bytes(self, format_number: int, num_rows: int, num_cols: int) -> int:
        """The size of a packed matrix; 0 if the format or shape isn't supported."""
        return int(self.functions.mtplx_packed_bytes(format_number, num_rows, num_cols))

    def pack(
        self, format_number: int, num_rows: int, num_cols: int, row_order: Ints | None, source: Bytes, packed: Bytes
    ) -> None:
        """Lays out a matrix's GGUF blocks, row after row, as the kernels read them; row i is source row row_order[i].

        Raises:
            NativeCallError: the format or shape isn't supported, or `row_order` holds what is no row.
        """
        assert packed.nbytes >= self.packed_bytes(format_number, num_rows, num_cols)
        assert source.flags.c_contiguous
        assert packed.flags.c_contiguous
        order = None if row_order is None else np.ascontiguousarray(row_order, dtype=np.int32)
        assert order is None or len(order) == num_rows
        self.check(
            self.functions.mtplx_pack(
                format_number, num_rows, num_cols, address(order), address(source), address(packed)
            )
        )

    def unpack_rows(self, weight: Weight, row_ids: Ints) -> Floats:
        """Returns the float32 values [len(row_ids), num_cols]. Raises: NativeCallError."""
        out = np.empty((len(row_ids), weight.num_cols), dtype=np.float32)
        ids = np.ascontiguousarray(row_ids, dtype=np.int32)
        self.check(self.functions.mtplx_unpack_rows(weight, address(ids), len(ids), address(out)))
        return out

    def open_pool(self, num_threads: int) -> Pool:
        """Raises MtplxError when threads can't be had."""
        return Pool(self, num_threads)


class Pool:
    """Threads of a library, sleeping between calls; the caller's own thread is one of `num_threads`."""

    def __init__(self, library: NativeLibrary, num_threads: int) -> None:
        self._library = library
        self._address: int | None = library.functions.mtplx_pool_create(num_threads)
        if not self._address:
            raise MtplxError(f"{num_threads} threads can't be had")

    @property
    def address(self) -> int:
        assert self._address, "the pool is closed"
        return self._address

    def close(self) -> None:
        """Ends the threads; may be called twice."""
        if self._address:
            self._library.functions.mtplx_pool_destroy(self._address)
        self._address = None

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def address(array: npt.NDArray[np.generic] | None) -> int | None:
    """Where an array's data begin; the caller keeps it alive."""
    return None if array is None else array.ctypes.data


def open_build(path: Path, note: str = "") -> NativeLibrary:
    """Loads a library from its file, untested.

    Raises:
        NativeUnavailableError: it isn't there, or can't be loaded.
    """
    if not path.is_file():
        raise NativeUnavailableError(f"{path.stem} wasn't built: reinstall with a C++ compiler at hand")
    try:
        functions = open_functions(str(path))
    except OSError as error:
        raise NativeUnavailableError(f"{path.name} can't be loaded: {error}") from error
    return NativeLibrary(functions.mtplx_build_name().decode(), note, functions)
