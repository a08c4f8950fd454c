"""The last step of a draw, the largest of score + noise: in numpy, or with the kernels' library to the same bits.

The library tells which few tokens could win, with an upper bound of everyone's noise; the noise of those few is then
computed as numpy computes it for all. It is a question of speed alone who answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mtplx.decode.filters import Floats, Ids
from mtplx.decode.noise import NoiseKey, gumbel, gumbel_of_bits
from mtplx.model.native.binding import address
from mtplx.model.native.library import NativeLibrary, NativeUnavailableError, load_library


class NoisyArgmax(Protocol):
    """Returns the argmax of scores_V + Gumbel noise, the first on ties.

    The largest of `scores_V` is 0; -inf stands for what may not be drawn. The noise is that of the ids `ids_V`,
    ascending; None means that they are the places in `scores_V`.
    """

    def __call__(self, scores_V: Floats, noise_key: NoiseKey, ids_V: Ids | None = None) -> int: ...


def plain_noisy_argmax(scores_V: Floats, noise_key: NoiseKey, ids_V: Ids | None = None) -> int:
    """The definition: noise for all that may be drawn."""
    places_S = np.flatnonzero(scores_V > -np.inf)
    values_S = gumbel(places_S if ids_V is None else ids_V[places_S], noise_key)
    values_S += scores_V[places_S]
    return int(places_S[np.argmax(values_S)])


@dataclass(frozen=True, slots=True)
class NativeNoisyArgmax:
    """The same by a library of the kernels."""

    library: NativeLibrary

    def __call__(self, scores_V: Floats, noise_key: NoiseKey, ids_V: Ids | None = None) -> int:
        places_S, bits_S = self.candidates(scores_V, noise_key, ids_V)
        values_S = gumbel_of_bits(bits_S)
        values_S += scores_V[places_S]
        return int(places_S[np.argmax(values_S)])

    def candidates(
        self, scores_V: Floats, noise_key: NoiseKey, ids_V: Ids | None = None
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint64]]:
        """Returns the few places that could win, ascending, and the 52 bits of each that its noise is made of."""
        assert scores_V.flags.c_contiguous
        ids = None if ids_V is None else np.ascontiguousarray(ids_V, dtype=np.int32)
        # Room for all, of which only the first pages are ever touched.
        places_V, bits_V = np.empty(len(scores_V), dtype=np.int32), np.empty(len(scores_V), dtype=np.uint64)
        count = self.library.functions.mtplx_draw_candidates(
            address(scores_V),
            len(scores_V),
            address(ids),
            noise_key.seed % 2**64,
            noise_key.position,
            noise_key.choice,
            address(places_V),
            address(bits_V),
        )
        return places_V[:count], bits_V[:count]


def fastest_noisy_argmax() -> NoisyArgmax:
    """The library's where there is one, else numpy's."""
    try:
        return NativeNoisyArgmax(load_library())
    except NativeUnavailableError:
        return plain_noisy_argmax
