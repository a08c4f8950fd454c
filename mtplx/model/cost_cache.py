"""Measured costs, kept from one start to the next. A file that is damaged, or isn't true any more, is measured anew.

Costs follow from the machine, the model, what computes it and with how many threads: all of that is in the file, and
its checksum and the format are the file's name.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from mtplx.batching.speculation import Costs, CostTable, DraftCost
from mtplx.model.costs import measure_costs, still_hold
from mtplx.model.machine import cpu_name, physical_cores
from mtplx.model.runner import Runner, drafting_runner

FOLDER = "costs"
_FORMAT: Final = 3  # in the name too, so that files of another are left alone

log = logging.getLogger(__name__)

Setup = dict[str, JsonValue]
StepSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
DraftSeconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class CostFile(BaseModel):
    """What a file of the cache holds; `step_s[n - 1]` is for a step of n tokens, and so is `step_after_draft_s`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format_version: Literal[3] = _FORMAT
    setup: Setup
    step_s: Annotated[list[StepSeconds], Field(min_length=1)]
    step_after_draft_s: Annotated[list[StepSeconds], Field(min_length=1)]
    draft_level_s: DraftSeconds
    draft_token_s: DraftSeconds


def load_costs(
    runner: Runner,
    *,
    fingerprint: str,
    threads: int | None,
    max_tokens: int,
    root: Path | None,
    clock: Callable[[], float] = time.perf_counter,
) -> Costs:
    """The costs of steps of up to `max_tokens` tokens: those kept under `root` if they still hold, else measured now.

    `fingerprint` names model and build, `threads` is the setting. What is measured is kept; where that fails, or
    without a `root`, the next start measures again. Takes a few steps, or as long as `measure_costs`, and leaves in the
    runner's cache what that leaves.
    """
    if root is None:
        return measure_costs(runner, max_tokens=max_tokens, clock=clock)
    setup = _setup(runner, fingerprint, threads, max_tokens)
    path = root / FOLDER / f"{_key(setup)}.v{_FORMAT}.json"
    kept = _read(path, setup)
    if kept is not None and still_hold(runner, kept, clock):
        return kept
    costs = measure_costs(runner, max_tokens=max_tokens, clock=clock)
    _write(path, setup, costs)
    return costs


def _setup(runner: Runner, fingerprint: str, threads: int | None, max_tokens: int) -> Setup:
    """All that the costs depend on, in words that people can compare."""
    drafting = drafting_runner(runner)
    return {
        "fingerprint": fingerprint,
        "cpu": cpu_name(),
        "cores": physical_cores(),
        "threads": threads,
        "runner": json.loads(json.dumps(asdict(runner.info))),  # with lists for tuples, as it is read back
        "max_draft_depth": drafting.max_draft_depth if drafting else 0,
        "block_size": runner.block_size,
        "max_tokens": min(max_tokens, runner.num_blocks),
    }


def _key(setup: Mapping[str, JsonValue]) -> str:
    return hashlib.sha256(json.dumps(setup, sort_keys=True).encode()).hexdigest()[:32]


def _read(path: Path, setup: Setup) -> Costs | None:
    """None where there is no such file or it isn't what `_write` writes."""
    try:
        file = CostFile.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        log.warning("%s is no table of costs, measuring again: %s", path, str(error).partition("\n")[0])
        return None
    if file.setup != setup or any(seconds != sorted(seconds) for seconds in (file.step_s, file.step_after_draft_s)):
        log.warning("%s isn't of this setup, measuring again", path)
        return None
    return Costs(
        CostTable(tuple(file.step_s)),
        DraftCost(file.draft_level_s, file.draft_token_s),
        CostTable(tuple(file.step_after_draft_s)),
        is_cached=True,
    )


def _write(path: Path, setup: Setup, costs: Costs) -> None:
    """Replaces the file as a whole, so that a reader sees the old one or the new one."""
    file = CostFile(
        setup=setup,
        step_s=list(costs.step.seconds),
        step_after_draft_s=list((costs.after_draft or costs.step).seconds),
        draft_level_s=costs.draft.per_level_s,
        draft_token_s=costs.draft.per_token_s,
    )
    staging = path.with_suffix(f".{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staging.write_text(file.model_dump_json(indent=2) + "\n", encoding="utf-8")
        staging.replace(path)
    except OSError as error:
        log.warning("the measured costs can't be kept: %s", error)
