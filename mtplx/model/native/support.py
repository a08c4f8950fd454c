"""Whether the native runner can serve a model here, found out without packing or loading anything."""

from __future__ import annotations

from mtplx.errors import ModelError
from mtplx.model.native.formats import resolve_quantization, target_format
from mtplx.model.native.library import NativeLibrary, NativeUnavailableError, load_library
from mtplx.model.native.pack import is_packed, open_source
from mtplx.model.native.shape import NativeShape, read_shape
from mtplx.model.native.slots import EMBEDDINGS, model_slots
from mtplx.model.store import cache_root
from mtplx.model.weights import ModelFolder


def why_not_native(model: ModelFolder, quantization: str = "auto") -> str | None:
    """Returns why not in one sentence, None if it can. `quantization` is the setting's value.

    Raises:
        ConfigError: `quantization` would round a second time.
    """
    try:
        library = load_library()
        shape = read_shape(model.path)
        _check_types(model, shape, quantization, library)
    except (NativeUnavailableError, ModelError) as error:
        return str(error)
    return None


def _check_types(model: ModelFolder, shape: NativeShape, quantization: str, library: NativeLibrary) -> None:
    resolved = resolve_quantization(quantization, from_gguf=model.gguf_path is not None)
    if is_packed(model, shape, resolved, library, cache_root()):
        return  # a GGUF's header takes seconds to read
    source = open_source(model, shape)
    for slot in model_slots(shape):
        if slot.is_matrix:
            target_format(source[slot.name].kind, resolved, is_embedding=slot.part in EMBEDDINGS)
