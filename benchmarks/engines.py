"""What benchmarks of drafts share: the model with a head, an engine of any mode and depth, prompts, a closed loop."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mtplx.batching.blocks import BlockAllocator
from mtplx.batching.speculation import Costs
from mtplx.batching.state import FinishReason, SchedulerMode, StepPlan, StopRules
from mtplx.config import load_settings
from mtplx.decode.logprobs import TokenLogprobs
from mtplx.model.costs import measure_costs
from mtplx.model.runner import Logits, Runner, drafting_runner
from mtplx.model.spec import ModelSpec, RunnerInfo
from mtplx.sampling_params import SamplingParams
from mtplx.server.assemble import Assembly, assemble
from mtplx.server.engine import EngineCore, Submit
from mtplx.server.modes import make_scheduler, make_speculator

PROMPTS = Path(__file__).parent / "data" / "prompts.jsonl"
CHUNK_TOKENS = 64  # what a server prefills in one step
MAX_MODEL_LEN = 1024
AUTO = None  # the depth that follows acceptance and cost


@dataclass(frozen=True, slots=True)
class Prompt:
    """A held-out conversation through the model's chat template; `kind` is what its user wants."""

    kind: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DraftStep:
    """One step of one answer: it emitted `num_tokens` after the first `begin`, `num_accepted` of them drafts."""

    begin: int
    num_tokens: int
    num_drafts: int
    num_accepted: int


@dataclass(slots=True)
class Answer:
    """What came out for one request; `steps` without the one that brought the first token, which has no drafts."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    steps: list[DraftStep] = field(default_factory=list)
    finish_reason: FinishReason | None = None


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that `open_with_head` reads."""
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--threads", type=int)


def open_model(model: str, draft_head: str, *, width: int, max_tokens: int, **settings: Any) -> Assembly:
    """The model and its head as a server would load them, with a cache for `width` of the longest answers.

    Raises:
        ConfigError, ModelError: as at a server's start.
    """
    given = {
        "model": model,
        "draft_head": draft_head,
        "draft_depth": 0,  # engines get their depths one by one
        "max_model_len": MAX_MODEL_LEN,
        "kv_cache_tokens": max(2, width) * min(MAX_MODEL_LEN, 512 + max_tokens),
    }
    return assemble(load_settings(given | {name: value for name, value in settings.items() if value is not None}))


def open_with_head(options: argparse.Namespace, draft_head: str, *, width: int, max_tokens: int) -> Assembly:
    """As `open_model`, by the options of `add_model_arguments`.

    Raises:
        SystemExit: there is no head.
    """
    assembly = open_model(options.model, draft_head, width=width, max_tokens=max_tokens, threads=options.threads)
    if drafting_runner(assembly.core.runner) is None:
        raise SystemExit(f"there is no draft head for {options.model}: name one with --draft-head")
    return assembly


def read_prompts(assembly: Assembly) -> list[Prompt]:
    """All held-out prompts as the model sees them."""
    entries = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    return [Prompt(entry["kind"], _encode(assembly, entry["messages"])) for entry in entries]


def costs_of(runner: Runner, width: int) -> Costs:
    """What steps and drafts cost here, measured as at a server's start."""
    drafting = drafting_runner(runner)
    assert drafting is not None, "costs are for a runner with a head"
    return measure_costs(drafting, max_tokens=width * (1 + drafting.max_draft_depth) + CHUNK_TOKENS)


def engine_of(
    runner: Runner,
    mode: SchedulerMode,
    depth: int | None,
    *,
    width: int,
    costs: Costs | None = None,
    chunk: int = CHUNK_TOKENS,
    prefix_salt: bytes | None = None,
) -> EngineCore:
    """An engine of its own around a runner that others use too, at other times: one must end before another begins."""
    scheduler = make_scheduler(
        mode,
        BlockAllocator(runner.num_blocks, runner.block_size),
        decode_batch_max=width,
        prefill_chunk_tokens=chunk,
        speculator=make_speculator(depth, costs, prefill_chunk_tokens=chunk),
        prefix_salt=prefix_salt,
    )
    return EngineCore(runner, scheduler)


def submit_of(
    prompt_ids: tuple[int, ...],
    params: SamplingParams,
    *,
    max_tokens: int,
    seed: int,
    eos_ids: frozenset[int],
    choice: int = 0,
) -> Submit:
    """One request; whoever runs it gives it its number."""
    return Submit(0, prompt_ids, params, seed=seed, choice=choice, stops=StopRules(max_tokens, eos_ids))


def answer_all(
    core: EngineCore, submits: Sequence[Submit], *, concurrency: int, rng: random.Random | None = None
) -> list[Answer]:
    """Runs all requests, at most `concurrency` at once, and returns their answers in order.

    With `rng` each joins at a random moment, not as soon as there is a place.
    """
    answers = [Answer() for _ in submits]
    todo = [replace(submit, seq_id=index) for index, submit in enumerate(submits)]
    num_live = 0
    while todo or core.has_work:
        while todo and num_live < concurrency and (rng is None or not core.has_work or rng.random() < 0.3):
            core.add(todo.pop(0))
            num_live += 1
        for output in core.step():
            assert output.error is None, output.error
            answer = answers[output.seq_id]
            begin, num_tokens = len(answer.token_ids), len(output.token_ids)
            if begin:
                answer.steps.append(DraftStep(begin, num_tokens, output.num_draft_tokens, output.num_accepted_tokens))
            answer.token_ids += output.token_ids
            answer.logprobs += output.logprobs
            answer.finish_reason = output.finish_reason
            num_live -= output.finish_reason is not None
    core.scheduler.table.check()
    return answers


class WrappedRunner:
    """A runner that hands every call on; for those that change or watch one of them."""

    def __init__(self, inner: Runner) -> None:
        self.inner = inner
        self.spec: ModelSpec = inner.spec
        self.info: RunnerInfo = inner.info
        self.num_blocks = inner.num_blocks
        self.block_size = inner.block_size
        drafting = drafting_runner(inner)
        self.max_draft_depth = drafting.max_draft_depth if drafting else 0

    def run(self, plan: StepPlan) -> Logits:
        return self.inner.run(plan)

    def draft(self, requests, choose):  # type: ignore[no-untyped-def]
        return self.inner.draft(requests, choose)

    def close(self) -> None:
        self.inner.close()


def _encode(assembly: Assembly, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
    return tuple(assembly.tokenizer.encode(assembly.chat_template.render(messages), add_special_tokens=False))
