"""The file that holds a draft head for some model: one safetensors file with JSON in its metadata.

Knows names, shapes and where such files lie; how a head is computed is the runners' business.

    enorm.weight [H]    hnorm.weight [H]    eh_proj.weight [H, 2H]: the embedding's half first    norm.weight [H]
    blocks.{i}.*        decoder layers under the base model's own names, rotate-half order
    draft_vocab         int32 [R], ascending token ids that the head can guess; absent: all of them

Embedding and output head are the base model's. Source: DeepSeek-V3, arXiv 2412.19437, section 2.2.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from mtplx.batching.speculation import MAX_DEPTH
from mtplx.errors import ModelError
from mtplx.model.catalog import CATALOG, CatalogEntry, WheelSource
from mtplx.model.head_shapes import DRAFT_VOCAB, wrong_tensors
from mtplx.model.spec import HeadInfo, ModelSpec
from mtplx.model.weights import ModelFolder

FILE_NAME = "mtp_head.safetensors"  # beside a model's own files
METADATA_KEY = "mtplx_head"
SHIPPED = Path(__file__).parent / "heads"
AFTER_FINAL_NORM = -1  # the trunk's hidden state that a head of this layout starts from

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

log = logging.getLogger(__name__)


class HeadMetadata(BaseModel):
    """What a head file says of itself. `acceptance["greedy"]` has one measured conditional rate a depth."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format_version: Literal[1] = 1
    layout: Literal["deepseek"] = "deepseek"
    hidden_layers: tuple[int, ...] = (AFTER_FINAL_NORM,)
    num_blocks: int = 1
    hidden_size: int
    vocab_size: int
    base_model: str
    base_weights_sha256: str  # of the weights it was trained with, as RunnerInfo has it
    tokenizer_sha256: str  # as `tokenizer_sha256` gives it
    training: dict[str, JsonValue] = {}
    acceptance: dict[str, JsonValue] = {}
    created: date


@dataclass(frozen=True, slots=True)
class HeadFile:
    """A head on disk, its header read and its weights not. `shapes` is by tensor name."""

    path: Path
    metadata: HeadMetadata
    shapes: Mapping[str, tuple[int, ...]]
    draft_vocab: Ints | None = field(compare=False)  # the ascending ids that it can guess; None for all of them

    @property
    def max_depth(self) -> int:
        """The last guess's own output leads to the next, so a head of this layout guesses as far as anyone asks."""
        return MAX_DEPTH

    @property
    def intermediate_size(self) -> int:
        """The blocks' own, which may differ from the base model's."""
        return self.shapes["blocks.0.mlp.gate_proj.weight"][0]

    @property
    def greedy_acceptance(self) -> tuple[float, ...]:
        """Stored conditional acceptance by depth, greedy; empty where none was measured."""
        rates = self.metadata.acceptance.get("greedy")
        return tuple(float(rate) for rate in rates if isinstance(rate, int | float)) if isinstance(rates, list) else ()

    @property
    def info(self) -> HeadInfo:
        """What the status says of it."""
        num_ids = self.metadata.vocab_size if self.draft_vocab is None else len(self.draft_vocab)
        return HeadInfo(self.path.name, self.metadata.num_blocks, num_ids, self.greedy_acceptance)

    def floats(self, name: str) -> Floats:
        """The values of one tensor, in float32."""
        with _opened(self.path) as file:
            return np.ascontiguousarray(file.get_tensor(name), dtype=np.float32)


def find_head(setting: str, model: ModelFolder) -> Path | None:
    """The head file that `--draft-head` leads to; None for none.

    `auto` is the file beside the model's own, else the one that comes with mtplx for a model of its catalog, else none.

    Raises:
        ModelError: a file was named that isn't there.
    """
    if setting == "none":
        return None
    if setting != "auto":
        path = Path(setting).expanduser()
        if not path.is_file():
            raise ModelError(f"there is no draft head {path}")
        return path
    candidates = [model.path / FILE_NAME, *(SHIPPED / f"{entry.name}.safetensors" for entry in _entries(model))]
    return next((path for path in candidates if path.is_file()), None)


def load_head(setting: str, model: ModelFolder, spec: ModelSpec) -> HeadFile | None:
    """The head that `--draft-head` leads to, known to fit the model; reads headers only.

    Raises:
        ModelError: a named file isn't there, it is damaged, or the head is for another model.
    """
    path = find_head(setting, model)
    if path is None:
        return None
    head = open_head(path)
    check_head(head, spec, tokenizer_sha256(model.path))
    return head


def open_head(path: Path) -> HeadFile:
    """Reads the header of a head file.

    Raises:
        ModelError: it isn't a head file, is damaged, or of a format or layout that this version doesn't know.
    """
    with _opened(path) as file:
        metadata = _parse_metadata(path, (file.metadata() or {}).get(METADATA_KEY))
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118, it is no mapping
        shapes = {name: tuple(found.get_shape()) for name, found in slices.items()}
        for name, found in slices.items():
            allowed = ("I32",) if name == DRAFT_VOCAB else ("F16", "F32")
            if found.get_dtype() not in allowed:
                raise ModelError(f"{path} has {name} in {found.get_dtype()}, a head file in {' or '.join(allowed)}")
        draft_vocab = file.get_tensor(DRAFT_VOCAB) if DRAFT_VOCAB in shapes else None
    return HeadFile(path, metadata, shapes, draft_vocab)


def check_head(head: HeadFile, spec: ModelSpec, tokenizer: str) -> None:
    """Refuses a head that isn't for this model: another size, other tensors, or ids that mean other text.

    Raises:
        ModelError: one sentence on what doesn't match.
    """
    metadata = head.metadata
    for name, own, model in (
        ("hidden size", metadata.hidden_size, spec.hidden_size),
        ("vocabulary", metadata.vocab_size, spec.vocab_size),
    ):
        if own != model:
            raise _misfit(head, f"its {name} is {own}, the model's {model}")
    if metadata.tokenizer_sha256 != tokenizer:
        raise _misfit(head, "its tokenizer is another")
    wrong = wrong_tensors(head.shapes, spec, metadata.num_blocks)
    if wrong is not None:
        raise _misfit(head, wrong)
    ids = head.draft_vocab
    if ids is not None and not (len(ids) and ids[0] >= 0 and ids[-1] < spec.vocab_size and (np.diff(ids) > 0).all()):
        raise _misfit(head, f"{DRAFT_VOCAB} holds other than ascending ids of the vocabulary")


def warn_of_other_weights(head: HeadFile, weights_sha256: str) -> None:
    """Logs one warning if the model's weights aren't those of the training; that can cost speed, never an answer."""
    if head.metadata.base_weights_sha256 != weights_sha256:
        log.warning(
            "the draft head %s was trained with other weights of %s: its guesses may be right less often",
            head.path,
            head.metadata.base_model,
        )


def write_head(path: Path, tensors: Mapping[str, npt.NDArray[Any]], metadata: HeadMetadata) -> HeadFile:
    """Writes a head file, whole or not at all, and returns it as it reads. Raises: ModelError, OSError."""
    from safetensors.numpy import save_file

    staging = path.with_name(f".{path.name}.partial")
    try:
        ordered = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
        save_file(ordered, staging, metadata={METADATA_KEY: metadata.model_dump_json()})
        staging.replace(path)
    finally:
        staging.unlink(missing_ok=True)
    return open_head(path)


def tokenizer_sha256(folder: Path) -> str:
    """A digest of which text each id of the model's tokenizer.json stands for, however the file is written.

    Raises:
        ModelError: there is none, or it can't be read.
    """
    path = folder / "tokenizer.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        vocab = data["model"]["vocab"]
        pairs = vocab.items() if isinstance(vocab, dict) else ((piece, index) for index, (piece, _) in enumerate(vocab))
        texts = {int(index): str(piece) for piece, index in pairs}
        texts |= {int(added["id"]): str(added["content"]) for added in data.get("added_tokens") or ()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} can't be read as a tokenizer") from error
    return hashlib.sha256(json.dumps(sorted(texts.items())).encode()).hexdigest()


def _entries(model: ModelFolder) -> list[CatalogEntry]:
    """The catalog's entries that this model is a copy of: had by that name, or made from the very same file."""
    found = []
    for entry in CATALOG:
        is_same_file = any(
            isinstance(source, WheelSource) and source.sha256 == model.gguf_sha256 for source in entry.sources
        )
        if is_same_file or model.source in map(str, entry.sources):
            found.append(entry)
    return found


def _opened(path: Path) -> Any:
    """An open file of the safetensors package, which is imported here: a model without a head needs none of it."""
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="numpy")
    except (OSError, SafetensorError) as error:
        raise ModelError(f"the draft head {path} is damaged, it can't be read as safetensors") from error


def _parse_metadata(path: Path, text: str | None) -> HeadMetadata:
    if text is None:
        raise ModelError(f"{path} is no draft head: its metadata has no {METADATA_KEY}")
    try:
        metadata = HeadMetadata.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or METADATA_KEY
        raise ModelError(f"{path} is a draft head of another kind: {where}: {first['msg']}") from None
    if metadata.hidden_layers != (AFTER_FINAL_NORM,):
        raise ModelError(f"{path} starts from hidden layers {list(metadata.hidden_layers)}, only [-1] is supported")
    if not 1 <= metadata.num_blocks <= MAX_DEPTH:
        raise ModelError(f"{path} has {metadata.num_blocks} blocks, a head has 1 to {MAX_DEPTH}")
    return metadata


def _misfit(head: HeadFile, why: str) -> ModelError:
    return ModelError(f"the draft head {head.path} is not for this model: {why}; choose another, or --draft-head none")
