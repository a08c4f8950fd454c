"""From a model to a head file: text, then training, then a measurement; killed anywhere, it goes on where it was."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from mtplx.errors import ConfigError
from mtplx.model.cache import BLOCK_SIZE
from mtplx.model.folder import read_spec
from mtplx.model.head_file import HeadFile, HeadMetadata, load_head, tokenizer_sha256, write_head
from mtplx.model.native.loader import load_native_runner
from mtplx.model.native.runner import NativeRunner
from mtplx.model.native.shape import read_shape
from mtplx.model.store import cache_root
from mtplx.model.weights import ModelFolder, with_safetensors
from mtplx.text.chat import ChatTemplate
from mtplx.text.tokenizer import Tokenizer
from mtplx.train.base import fresh_head, load_base
from mtplx.train.head import DraftHead
from mtplx.train.measure import Acceptance, measure_acceptance
from mtplx.train.prompts import make_frame, read_prompts
from mtplx.train.shards import Passage, read_shard, write_shard
from mtplx.train.text import MAX_PROMPT_TOKENS, Frame, Writer
from mtplx.train.trainer import Recipe, Trainer

MEASURED_DEPTHS = 4
_WIDTH = 32  # passages written at a time
_CHECKPOINT_S = 60.0
_NOTE = "settings.json"  # what a work folder is for


@dataclass(frozen=True, slots=True)
class TextPlan:
    """How much text is written, in files of `shard_passages`; one more file is kept from training, to measure on."""

    passages: int = 5120
    max_answer_tokens: int = 256
    draft_vocab: int = 8192
    shard_passages: int = 256

    @property
    def num_shards(self) -> int:
        return -(-self.passages // self.shard_passages)


class Progress(Protocol):
    """Who is told how far the work is."""

    def begin(self, label: str, total: int, done: int) -> None:
        """A stage of `total` units begins, `done` of which were done before."""
        ...

    def advance(self, note: str = "") -> None:
        """One unit more is done."""
        ...


@dataclass(frozen=True, slots=True)
class TrainedHead:
    file: HeadFile
    acceptance: Acceptance


def train_head(
    model: ModelFolder,
    output: Path,
    *,
    text: TextPlan,
    recipe: Recipe,
    data: Path | None,
    text_from: Sequence[Path],
    start_from: Path | None,
    threads: int | None,
    work_dir: Path | None,
    command: str,
    progress: Progress,
) -> TrainedHead:
    """Writes the head file `output` for the model, and returns it with what was measured on text kept apart.

    `text_from` are work folders of earlier runs, whose text is learned from too. `start_from` is a head to go on from,
    with its blocks; one that guesses all ids goes on doing so. `work_dir` holds text and checkpoint; by default it is
    a folder of the user's cache, named after model and settings.

    Raises:
        ModelError: model or head can't be read or used: the native runner can't serve it, the head isn't for it.
        ConfigError: `data`, `text_from` or `work_dir` isn't usable.
    """
    begin_s = time.monotonic()
    folder = with_safetensors(model).path
    shape, spec, tokenizer = read_shape(folder), read_spec(folder), Tokenizer.load(folder)
    template = ChatTemplate.load(folder)
    earlier = load_head(str(start_from), model, spec) if start_from else None
    frame = make_frame(template, tokenizer, spec.eos_ids)
    prompts = read_prompts(data, template, tokenizer) if data else []
    num_positions = _longest(frame, text, prompts)
    runner = load_native_runner(
        model, threads=threads, kv_cache_tokens=_WIDTH * num_positions, max_model_len=num_positions
    )
    try:
        weights = runner.info.weights_sha256
        assert weights is not None, "the native runner knows its weights"
        settings = {"weights": weights, "text": asdict(text), "recipe": asdict(recipe), "prompts": _digest(prompts)}
        earlier_shards = [shard for work in text_from for shard in _shards_of(work, weights)]
        if earlier_shards:
            settings["text_from"] = [str(shard) for shard in earlier_shards]
        if earlier is not None:
            settings["start_from"] = hashlib.sha256(earlier.path.read_bytes()).hexdigest()
        work = _work_dir(work_dir, model.name, settings)
        shards = _write_text(work, runner, frame, text, recipe.seed, prompts, progress)
    finally:
        runner.close()
    torch.set_num_threads(threads or torch.get_num_threads())
    passages = [passage for shard in earlier_shards + shards[:-1] for passage in read_shard(shard)]
    passages = [passage for passage in passages if _is_usable(passage)]
    held_out = [passage for passage in read_shard(shards[-1]) if _is_usable(passage)]
    base = load_base(folder, shape)
    num_blocks = recipe.num_blocks if earlier is None else earlier.metadata.num_blocks
    head = fresh_head(folder, shape, num_blocks=num_blocks, max_positions=num_positions)
    counted = count_vocabulary(passages, shape.vocab, text.draft_vocab)
    draft_ids = counted if earlier is None else _take_up(earlier, head, counted)
    draft_ids_R = torch.from_numpy(draft_ids).long()
    _train(Trainer(head, base, draft_ids_R, passages, recipe), work / "checkpoint.pt", progress)
    acceptance = measure_acceptance(head, base, draft_ids_R, held_out, MEASURED_DEPTHS)
    metadata = HeadMetadata(
        num_blocks=num_blocks,
        hidden_size=shape.hidden,
        vocab_size=shape.vocab,
        base_model=model.name,
        base_weights_sha256=weights,
        tokenizer_sha256=tokenizer_sha256(folder),
        training={
            "command": command,
            "seconds_of_last_run": round(time.monotonic() - begin_s),
            **_described(text, recipe, passages, earlier),
        },
        acceptance={"greedy": [round(rate, 4) for rate in acceptance.by_depth]},
        created=datetime.now(UTC).date(),
    )
    tensors = {name: value.detach().numpy().astype(np.float16) for name, value in head.state_dict().items()}
    return TrainedHead(write_head(output, {**tensors, "draft_vocab": draft_ids}, metadata), acceptance)


def count_vocabulary(passages: Sequence[Passage], vocab_size: int, size: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The ascending ids of the `size` tokens met most often in answers; the lower id where two are met alike."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for passage in passages:
        counts += np.bincount(passage.token_ids[passage.answer_start :], minlength=vocab_size)
    return np.sort(np.argsort(-counts, kind="stable")[:size]).astype(np.int32)


def _described(text: TextPlan, recipe: Recipe, passages: Sequence[Passage], earlier: HeadFile | None) -> dict[str, Any]:
    return {
        "recipe": asdict(recipe),
        "text": asdict(text),
        "tokens": sum(len(passage.token_ids) for passage in passages),
        "started_from": None if earlier is None else earlier.metadata.training,
    }


def _take_up(
    earlier: HeadFile, head: DraftHead, counted: np.ndarray[Any, np.dtype[np.int32]]
) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Gives a head the weights of an earlier one, and returns the ids that it guesses: those counted, or still all."""
    head.load_state_dict({name: torch.from_numpy(earlier.floats(name)) for name in head.state_dict()})
    if earlier.draft_vocab is None:
        return np.arange(earlier.metadata.vocab_size, dtype=np.int32)
    return counted


def _longest(frame: Frame, text: TextPlan, prompts: Sequence[Sequence[int]]) -> int:
    """Tokens of the longest passage, in whole blocks of the cache."""
    longest_prompt = max((frame.num_tokens + MAX_PROMPT_TOKENS, *map(len, prompts)))
    return -(-(longest_prompt + text.max_answer_tokens) // BLOCK_SIZE) * BLOCK_SIZE


def _work_dir(asked: Path | None, name: str, settings: dict[str, Any]) -> Path:
    """The folder of exactly this work, made if need be. Raises: ConfigError: it holds other work."""
    described = json.dumps(settings, sort_keys=True)
    digest = hashlib.sha256(described.encode()).hexdigest()[:16]
    work = asked or cache_root() / "train-head" / f"{name}-{digest}"
    note = work / _NOTE
    try:
        work.mkdir(parents=True, exist_ok=True)
        if not note.exists():
            note.write_text(described, encoding="utf-8")
        if note.read_text(encoding="utf-8") != described:
            raise ConfigError(f"{work} holds text of other settings or another model; choose another", "--work-dir")
    except OSError as error:
        raise ConfigError(f"{work} can't be used: {error}", "--work-dir") from error
    return work


def _shards_of(work: Path, weights: str) -> list[Path]:
    """What an earlier run learned from. Raises: ConfigError: it has no text, or that of other weights."""
    shards = sorted(work.glob("text-*.safetensors"))
    try:
        described = json.loads((work / _NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        described = {}
    if not shards or described.get("weights") != weights:
        raise ConfigError(f"{work} holds no text that these weights have written", "--text-from")
    return shards


def _write_text(
    work: Path,
    runner: NativeRunner,
    frame: Frame,
    text: TextPlan,
    seed: int,
    prompts: Sequence[Sequence[int]],
    progress: Progress,
) -> list[Path]:
    """Writes what is missing of the shards, the one kept apart at the end; returns them all."""
    writer = Writer(runner, frame, width=_WIDTH, max_answer_tokens=text.max_answer_tokens)
    shards = [work / f"text-{index:05d}.safetensors" for index in range(text.num_shards)] + [
        work / "held-out.safetensors"
    ]
    missing = [index for index, path in enumerate(shards) if not path.exists()]
    size = text.shard_passages
    progress.begin("writing text", len(shards) * size, (len(shards) - len(missing)) * size)
    for index in missing:
        is_held_out = index == text.num_shards
        dealt = [] if is_held_out else prompts[index :: text.num_shards][:size]
        write_shard(shards[index], writer.write(size, seed + index, dealt, progress.advance))
    return shards


def _train(trainer: Trainer, checkpoint: Path, progress: Progress) -> None:
    if checkpoint.exists():
        trainer.load(checkpoint)
    progress.begin("training", trainer.num_steps, trainer.num_done)
    saved_s = time.monotonic()
    while trainer.num_done < trainer.num_steps:
        phase = trainer.phase
        loss = trainer.step()
        progress.advance(f"{phase} {loss:.3f}")
        if time.monotonic() - saved_s > _CHECKPOINT_S:
            trainer.save(checkpoint)
            saved_s = time.monotonic()
    trainer.save(checkpoint)


def _is_usable(passage: Passage) -> bool:
    return len(passage.hidden) > passage.answer_start


def _digest(prompts: Sequence[Sequence[int]]) -> str:
    return hashlib.sha256(json.dumps(list(map(list, prompts))).encode()).hexdigest()
