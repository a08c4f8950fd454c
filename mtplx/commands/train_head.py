"""`mtplx train-head`: teaches a model to guess its own next tokens, from text that it writes itself."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mtplx.errors import ConfigError

if TYPE_CHECKING:
    from mtplx.commands.public import Subparsers

# The flag, its type, its default and what it is for. Defaults are those of `TextPlan` and `Recipe` (a test compares).
_NUMBERS = (
    ("--passages", int, 5120, "answers that the model writes to learn from"),
    ("--max-answer-tokens", int, 256, "most tokens of one answer"),
    ("--draft-vocab", int, 8192, "tokens that the head can guess: those met most often in answers"),
    ("--blocks", int, 1, "decoder layers in the head"),
    ("--depths", int, 3, "guesses in a row that it is trained on"),
    ("--regression-rounds", float, 1.0, "times through the text towards the next hidden state"),
    ("--first-depth-rounds", float, 5.0, "times through the text towards the model's distribution, one guess deep"),
    ("--rounds", float, 1.0, "times through the text towards the model's distribution, all guesses deep"),
    ("--seed", int, 0, "the same seed, model and machine give the same head"),
)


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "train-head",
        help="make a draft head for a model",
        description="Make a draft head for a model, with no data set: the model writes prompts and answers, and the "
        "head learns from them to guess what comes next. A run that was stopped goes on where it was.",
    )
    parser.add_argument("model", metavar="MODEL", help="catalog name, hub id, local folder or .gguf file")
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: mtp_head.safetensors beside the model")
    parser.add_argument("--data", type=Path, metavar="FILE", help="prompts of your own, one JSON object a line")
    parser.add_argument(
        "--text-from",
        type=Path,
        metavar="DIR",
        action="append",
        default=[],
        help="the --work-dir of an earlier run, to learn from its text too; may be given again",
    )
    parser.add_argument("--start-from", type=Path, metavar="HEAD", help="a head file to go on from, with new text")
    parser.add_argument(
        "--work-dir", type=Path, metavar="DIR", help="where text and checkpoint are; default: the cache"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: the physical cores)")
    for flag, kind, default, purpose in _NUMBERS:
        parser.add_argument(flag, type=kind, default=default, metavar="N", help=f"{purpose} (default: {default})")


def run(namespace: argparse.Namespace) -> int:
    """Trains and prints what was reached.

    Raises:
        ConfigError: a number is out of range, or a file or folder can't be used.
        ModelError: the model can't be had, or the native runner can't serve it.
    """
    _check(namespace)
    from mtplx.commands.training_progress import training_progress
    from mtplx.model.head_file import FILE_NAME
    from mtplx.model.weights import resolve_model
    from mtplx.train.run import TextPlan, train_head
    from mtplx.train.trainer import Recipe

    model = resolve_model(namespace.model, with_weights=False)
    output: Path = namespace.output or model.path / FILE_NAME
    if not output.parent.is_dir():
        raise ConfigError(f"there is no folder {output.parent}", "--output")
    with training_progress() as progress:
        trained = train_head(
            model,
            output,
            text=TextPlan(namespace.passages, namespace.max_answer_tokens, namespace.draft_vocab),
            recipe=Recipe(
                num_blocks=namespace.blocks,
                depths=namespace.depths,
                regression_rounds=namespace.regression_rounds,
                first_depth_rounds=namespace.first_depth_rounds,
                all_depths_rounds=namespace.rounds,
                seed=namespace.seed,
            ),
            data=namespace.data,
            text_from=namespace.text_from,
            start_from=namespace.start_from,
            threads=namespace.threads,
            work_dir=namespace.work_dir,
            command=shlex.join(["mtplx", *sys.argv[1:]]),
            progress=progress,
        )
    for depth, rate in enumerate(trained.acceptance.by_depth, start=1):
        print(f"guess {depth}: right {rate:.3f} of the times that those before it were")
    print(f"{trained.file.path}: {trained.acceptance.tokens_per_step:.2f} tokens a step at best, with all of them")
    return 0


def _check(namespace: argparse.Namespace) -> None:
    limits = {"passages": 1, "max_answer_tokens": 8, "draft_vocab": 2, "blocks": 1, "depths": 1}
    for name, least in limits.items():
        if getattr(namespace, name) < least:
            raise _out_of_range(name, f"at least {least}")
    if namespace.threads is not None and namespace.threads < 1:
        raise _out_of_range("threads", "at least 1")
    for name in ("blocks", "depths"):
        if getattr(namespace, name) > 8:
            raise _out_of_range(name, "at most 8")
    for name in ("regression_rounds", "first_depth_rounds", "rounds"):
        if not 0 <= getattr(namespace, name) <= 1000:
            raise _out_of_range(name, "from 0 to 1000")


def _out_of_range(name: str, range_: str) -> ConfigError:
    flag = f"--{name.replace('_', '-')}"
    return ConfigError(f"{flag} must be {range_}", flag)
