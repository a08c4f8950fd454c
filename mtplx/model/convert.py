"""Turns a GGUF file into a Hugging Face folder, once, in the cache: config, generation config, tokenizer, safetensors.

The numbers are those of the file: dequantised to float32 and not rounded again, which takes several times its size.
The GGUF itself stays where it is and is named in the folder's manifest; runners that read its blocks need no
safetensors, so these are made when they are first asked for.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
from pathlib import Path
from typing import Any

from mtplx.errors import ModelError
from mtplx.model.gguf import GgufFile, read_gguf
from mtplx.model.gguf_config import build_config, check_architecture, generation_settings
from mtplx.model.gguf_tokenizer import save_tokenizer
from mtplx.model.store import (
    FileStamp,
    Say,
    exclusive,
    intact_manifest,
    is_intact,
    read_manifest,
    staged_folder,
    stamp_file,
    write_manifest,
)

CONVERTER_VERSION = 1  # raised when the same file would give another folder
WEIGHTS_NAME = "model.safetensors"
MARGIN_BYTES = 50_000_000  # for tokenizer and configuration

log = logging.getLogger(__name__)


def convert_gguf(path: Path, root: Path, source: str, say: Say, *, with_weights: bool = True) -> tuple[Path, FileStamp]:
    """The folder made from this file, made now if it isn't there yet, and the file's stamp.

    The folder's name holds the file's checksum, so a changed file gets a folder of its own. A folder that was made
    without weights is made anew when they are wanted.

    Raises:
        ModelError: the file is damaged, its architecture or tokenizer isn't served, or there is no room.
    """
    stamp = _stamp(path, root)
    stem = re.sub(r"[^\w.-]+", "-", path.stem)
    key = f"{stem}-{stamp.sha256[:16]}-v{CONVERTER_VERSION}"
    target = root / "converted" / key
    if _is_ready(target, with_weights):
        return target, stamp
    with exclusive(root, key, say):
        if not _is_ready(target, with_weights):  # else another process made it while this one waited
            if target.exists() and intact_manifest(target) is None:
                say(f"the cached folder {target} is damaged, making it anew")
            _convert(path, target, source, stamp, say, with_weights)
    return target, stamp


def _is_ready(folder: Path, with_weights: bool) -> bool:
    manifest = intact_manifest(folder)
    if manifest is None:
        return False
    return not with_weights or any(stamp.path == WEIGHTS_NAME for stamp in manifest.files)


def _stamp(path: Path, root: Path) -> FileStamp:
    """The file's stamp, from an earlier conversion if the file hasn't changed since: large files take long to read."""
    if not path.is_file():
        raise ModelError(f"there is no file {path}")
    for folder in sorted((root / "converted").glob("*/")):
        manifest = read_manifest(folder)
        if manifest and manifest.gguf and manifest.gguf.path == str(path.absolute()) and is_intact(path, manifest.gguf):
            return manifest.gguf
    return stamp_file(path)


def _convert(path: Path, target: Path, source: str, stamp: FileStamp, say: Say, with_weights: bool) -> None:
    gguf = read_gguf(path)
    check_architecture(gguf)
    say(f"converting {path.name} for use, once")
    with staged_folder(target, 4 * gguf.num_parameters * with_weights + MARGIN_BYTES) as staging:
        save_tokenizer(gguf, staging)
        config = build_config(gguf)
        if with_weights:
            _save_weights(gguf, config, staging)
        config.save_pretrained(staging)
        text = json.dumps(generation_settings(gguf), indent=2)
        (staging / "generation_config.json").write_text(text + "\n", encoding="utf-8")
        write_manifest(staging, source, stamp)


def _save_weights(gguf: GgufFile, config: Any, folder: Path) -> None:
    """Writes model.safetensors in the narrowest type that holds every number exactly; sets the config's dtype to it."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    state = _load_weights(gguf, config, folder)
    dtype = _narrowest_exact(gguf, state)
    config.dtype = dtype
    tensors = {name: tensor.to(dtype).contiguous() for name, tensor in state.items()}
    try:
        save_file(tensors, folder / WEIGHTS_NAME, metadata={"format": "pt"})
    except SafetensorError as error:  # also how it reports a full disk
        raise ModelError(f"the converted weights can't be written to {folder}: {error}") from error


def _load_weights(gguf: GgufFile, config: Any, empty_folder: Path) -> dict[str, Any]:
    """The model's tensors in float32 under transformers' names; a tied output head is left out.

    `empty_folder` stands in for the model's folder: beside the user's file there may be others (adapters,
    configurations) that transformers would take up.
    """
    import torch
    import transformers

    model_class = getattr(transformers, check_architecture(gguf))
    chatter = io.StringIO()
    try:
        with contextlib.redirect_stderr(chatter):
            model, info = model_class.from_pretrained(
                empty_folder,
                config=config,
                gguf_file=str(gguf.path.absolute()),
                dtype=torch.float32,
                output_loading_info=True,
            )
    except (ValueError, RuntimeError, KeyError, NotImplementedError) as error:
        raise ModelError(f"the weights of {gguf.path} can't be read: {str(error).splitlines()[0]}") from error
    finally:
        log.debug("transformers said: %s", chatter.getvalue())
    tied = model.all_tied_weights_keys if config.tie_word_embeddings else {}
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in tied}
    lost = {name for name in info["missing_keys"] if name not in tied}
    if lost or len(state) != len(gguf.tensor_types):
        raise ModelError(
            f"{gguf.path} holds {len(gguf.tensor_types)} tensors where a {gguf.architecture} model of this shape has "
            f"{len(state)}: a variant that isn't served from GGUF"
        )
    return state


def _narrowest_exact(gguf: GgufFile, state: dict[str, Any]) -> Any:
    """float16 or bfloat16 if the file is in that type and no number changes by it, else float32."""
    import torch

    for name, dtype in (("F16", torch.float16), ("BF16", torch.bfloat16)):
        if name in gguf.tensor_types.values() and all(
            torch.equal(tensor.to(dtype).to(torch.float32), tensor) for tensor in state.values()
        ):
            return dtype
    return torch.float32
