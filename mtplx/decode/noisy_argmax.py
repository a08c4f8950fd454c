"""The last step of a draw, the largest of score + noise: in numpy, or with the kernels' library to the same bits.

The library tells which few tokens could win, with an upper bound of everyone's noise; the noise of those few is then
computed as numpy computes it for all. Whoever wins among all and outlives top-p and min-p has won among those that do.
It is a question of speed alone who answers.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from mtplx.decode.filters import Floats, has_filters
from mtplx.decode.noise import NoiseKey, gumbel, gumbel_of_bits
from mtplx.model.native.binding import address
from mtplx.model.native.library import NativeLibrary, NativeUnavailableError, load_library
from mtplx.model.runner import Logits
from mtplx.sampling_params import SamplingParams

_LEAST_TEMPERATURE, _MOST_TEMPERATURE = 1e-3, 1e3  # that the library takes
_LEAST_TOP_P, _MOST_MIN_P = 0.5, 0.1  # narrower filters drop the winner too often to draw it first


class NoisyArgmax(Protocol):
    """Finds the largest of score + Gumbel noise, the first on ties.

    The noise is that of the ids `ids_V`, ascending; None means that they are the places in the row.
    """

    def __call__(self, scores_V: Floats, noise_key: NoiseKey, ids_V: npt.NDArray[np.integer] | None = None) -> int:
        """Returns its place. The largest of `scores_V` is 0; -inf stands for what may not be drawn."""
        ...

    def of_logits(
        self,
        logits_V: Logits,
        params: SamplingParams,
        noise_key: NoiseKey,
        ids_V: npt.NDArray[np.integer] | None = None,
    ) -> int | None:
        """The same of scores (logit - largest) / temperature that outlive the filters; None if that isn't quick."""
        ...


class PlainNoisyArgmax:
    """The definition: noise for all that may be drawn."""

    def __call__(self, scores_V: Floats, noise_key: NoiseKey, ids_V: npt.NDArray[np.integer] | None = None) -> int:
        places_S = np.flatnonzero(scores_V > -np.inf)
        values_S = gumbel(places_S if ids_V is None else ids_V[places_S], noise_key)
        values_S += scores_V[places_S]
        return int(places_S[np.argmax(values_S)])

    def of_logits(
        self,
        logits_V: Logits,
        params: SamplingParams,
        noise_key: NoiseKey,
        ids_V: npt.NDArray[np.integer] | None = None,
    ) -> int | None:
        return None


class NativeNoisyArgmax:
    """The same by a library of the kernels."""

    def __init__(self, library: NativeLibrary) -> None:
        self._functions = library.functions
        self._places = np.empty(0, dtype=np.int32)  # of the last call's candidates, with room for all
        self._bits = np.empty(0, dtype=np.uint64)
        self._scores = np.empty(0, dtype=np.float64)

    def __call__(self, scores_V: Floats, noise_key: NoiseKey, ids_V: npt.NDArray[np.integer] | None = None) -> int:
        places_S, bits_S = self.candidates(scores_V, noise_key, ids_V)
        return _first_largest(places_S, bits_S, scores_V[places_S])

    def of_logits(
        self,
        logits_V: Logits,
        params: SamplingParams,
        noise_key: NoiseKey,
        ids_V: npt.NDArray[np.integer] | None = None,
    ) -> int | None:
        is_ours = logits_V.dtype == np.float32 and logits_V.flags.c_contiguous
        if not (is_ours and _LEAST_TEMPERATURE <= params.temperature <= _MOST_TEMPERATURE):
            return None
        if not _is_wide(params):
            return None
        count = self._find(logits_V, noise_key, ids_V, params.temperature)
        if not count:
            return None
        place = _first_largest(self._places[:count], self._bits[:count], self._scores[:count])
        return place if not has_filters(params) or self._survives(logits_V, place, params) else None

    def _survives(self, logits_V: Logits, place: int, params: SamplingParams) -> bool:
        """Whether a place certainly outlives the filters."""
        row = (address(logits_V), len(logits_V), params.temperature)
        return bool(self._functions.mtplx_survives(*row, place, params.top_p, params.min_p))

    def candidates(
        self, scores_V: Floats, noise_key: NoiseKey, ids_V: npt.NDArray[np.integer] | None = None
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint64]]:
        """Returns the few places that could win, ascending, and the 52 bits of each that its noise is made of.

        They hold until the next call.
        """
        assert scores_V.flags.c_contiguous
        count = self._find(scores_V, noise_key, ids_V)
        return self._places[:count], self._bits[:count]

    def _find(
        self,
        row_V: Logits,
        noise_key: NoiseKey,
        ids_V: npt.NDArray[np.integer] | None,
        temperature: float | None = None,
    ) -> int:
        """Has the library write the candidates, and returns their number; with a temperature the row is of logits."""
        if len(self._places) < len(row_V):
            self._places = np.empty(len(row_V), dtype=np.int32)
            self._bits = np.empty(len(row_V), dtype=np.uint64)
            self._scores = np.empty(len(row_V), dtype=np.float64)
        ids = None if ids_V is None else np.ascontiguousarray(ids_V, dtype=np.int32)
        row = (address(row_V), len(row_V))
        noise = (address(ids), noise_key.seed % 2**64, noise_key.position, noise_key.choice)
        found = (address(self._places), address(self._bits))
        if temperature is None:
            return int(self._functions.mtplx_draw_candidates(*row, *noise, *found))
        scores = address(self._scores)
        return int(self._functions.mtplx_draw_candidates_of_logits(*row, temperature, *noise, *found, scores))


plain_noisy_argmax = PlainNoisyArgmax()


def fastest_noisy_argmax() -> NoisyArgmax:
    """The library's where there is one, else numpy's."""
    try:
        return NativeNoisyArgmax(load_library())
    except NativeUnavailableError:
        return plain_noisy_argmax


def _is_wide(params: SamplingParams) -> bool:
    """Whether the filters leave most winners, so that it pays to draw one first and to filter only where need be.

    How many top-k leaves depends on the temperature, and it is quick by itself.
    """
    return params.top_k == 0 and params.top_p >= _LEAST_TOP_P and params.min_p <= _MOST_MIN_P


def _first_largest(places_S: npt.NDArray[np.int32], bits_S: npt.NDArray[np.uint64], scores_S: Floats) -> int:
    values_S = gumbel_of_bits(bits_S)
    values_S += scores_S
    return int(places_S[np.argmax(values_S)])
