"""The kernels' library: the best build that runs here and agrees with the portable one, and why not a better one.

Also the one place that the rest of the package takes the library's types from.
"""

from __future__ import annotations

from functools import cache

from mtplx.model.native.abi import Cache as Cache
from mtplx.model.native.abi import Config as Config
from mtplx.model.native.abi import Layer as Layer
from mtplx.model.native.abi import Rows as Rows
from mtplx.model.native.abi import Step as Step
from mtplx.model.native.abi import Weight as Weight
from mtplx.model.native.binding import NativeCallError as NativeCallError
from mtplx.model.native.binding import NativeLibrary as NativeLibrary
from mtplx.model.native.binding import NativeUnavailableError as NativeUnavailableError
from mtplx.model.native.binding import Pool as Pool
from mtplx.model.native.binding import open_build
from mtplx.model.native.builds import LIBRARIES, Build, builds_here
from mtplx.model.native.self_test import difference


@cache
def load_library(build: str | None = None) -> NativeLibrary:
    """The best build, or the one named. Loaded once and tested against the portable build.

    Raises:
        NativeUnavailableError: there is none, it doesn't run on this machine, or it failed its test.
    """
    refused: list[str] = []
    for candidate in builds_here():
        if build not in (None, candidate.name):
            continue
        try:
            return _open(candidate, note="; ".join(refused))
        except NativeUnavailableError as error:
            refused.append(str(error))
    raise NativeUnavailableError("; ".join(refused) or f"there is no build {build} for this architecture")


def _open(build: Build, note: str) -> NativeLibrary:
    yardstick = open_build(LIBRARIES / builds_here()[-1].file_name)
    if not yardstick.functions.mtplx_machine_runs(build.name.encode()):
        raise NativeUnavailableError(f"this processor doesn't run the {build.name} build")
    library = open_build(LIBRARIES / build.file_name, note)
    wrong = difference(library, yardstick)
    if wrong is not None:
        raise NativeUnavailableError(f"the {build.name} build failed its test against the portable one: {wrong}")
    return library
