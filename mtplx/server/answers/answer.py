"""What the answers of both completion endpoints have in common: their head, their choices, their token counts."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mtplx.decode.logprobs import TokenLogprobs
from mtplx.server.answers.prompts import Echo
from mtplx.server.answers.shapes import Metrics, Usage
from mtplx.server.choice_text import Delta
from mtplx.text.tokenizer import Tokenizer
from mtplx.text.tools.parts import CallArguments, CallBegin, Part, Reasoning, Text


@dataclass(frozen=True, slots=True)
class Head:
    """What an answer and every chunk of it begin with; `created` in Unix seconds, `seed` the one used."""

    id: str
    created: int
    model: str
    fingerprint: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerParts:
    """All that is known of an answer before its first token; `prompts` in request order."""

    head: Head
    prompts: Sequence[tuple[int, ...]]
    num_choices: int  # per prompt
    tokenizer: Tokenizer
    has_logprobs: bool
    has_token_ids: bool
    has_usage: bool  # counts in a stream's last chunk
    has_running_usage: bool = False  # and in every other
    has_prompt_scores: bool = False  # whatever they are for
    has_prompt_logprobs: bool = False  # told of each prompt by themselves
    echo: Echo | None = None
    skips_special_tokens: bool = True
    has_thoughts: bool = False  # that are told from the answer, and counted
    must_call: bool = False  # so that nothing is said


@dataclass(slots=True)
class Call:
    """A call of a function, growing; `arguments` is JSON at its end, if the model has kept to that."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Choice:
    """One choice, growing by deltas; `number` counts over all prompts of the request.

    `text` is all of it, `content` what is neither thought nor part of a call.
    """

    number: int
    prompt_ids: tuple[int, ...]
    text: str = ""
    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    num_reasoning_tokens: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)  # one list for all choices of a prompt
    finish_reason: str | None = None
    stop_string: str | None = None  # that ended it
    num_draft_tokens: int = 0
    max_draft_tokens: int = 0  # in one step
    acceptance: Counter[int] = field(default_factory=Counter)  # accepted drafts of a step with drafts, to such steps
    num_cached_tokens: int = 0  # of its prompt

    def add(self, delta: Delta) -> None:
        self.text += delta.text
        for part in parts_of(delta):
            self._add_part(part)
        self.num_reasoning_tokens += delta.num_reasoning_tokens
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        self.num_cached_tokens = max(self.num_cached_tokens, delta.num_cached_tokens)
        if delta.num_draft_tokens:
            self.num_draft_tokens += delta.num_draft_tokens
            self.max_draft_tokens = max(self.max_draft_tokens, delta.num_draft_tokens)
            self.acceptance[delta.num_accepted_tokens] += 1
        if delta.finish_reason is not None:
            self.finish_reason = str(delta.finish_reason)
            self.stop_string = delta.stop_string

    def _add_part(self, part: Part) -> None:
        match part:
            case Text(text):
                self.content += text
            case Reasoning(text):
                self.reasoning += text
            case CallBegin(name):
                self.calls.append(Call(f"call_{uuid.uuid4().hex[:24]}", name))
            case CallArguments(text):
                self.calls[-1].arguments += text


class Answer(Protocol):
    """Turns choices into the JSON of one endpoint; what is returned is never changed later."""

    def opening(self) -> Sequence[Any]:
        """The chunks that come before any token."""
        ...

    def chunks(self, choice: Choice, delta: Delta) -> Sequence[Any]:
        """The chunks for one delta, which has been added to `choice` already; none when there is nothing to say."""
        ...

    def closing(self, choices: Sequence[Choice], usage: Usage) -> Sequence[Any]:
        """The chunks that come when all choices have ended."""
        ...

    def failure(self, error: Exception) -> Sequence[Any]:
        """What ends a stream that failed, wherever it was."""
        ...

    def whole(self, choices: Sequence[Choice], usage: Usage) -> Any:
        """The answer in one piece."""
        ...


def parts_of(delta: Delta) -> Sequence[Part]:
    """What a delta's text is made of: itself, where nothing else is looked for."""
    if delta.parts is not None:
        return delta.parts
    return (Text(delta.text),) if delta.text else ()


def make_head(prefix: str, *, model: str, fingerprint: str, seed: int) -> Head:
    """A head with an id of its own, made now."""
    return Head(f"{prefix}{uuid.uuid4().hex}", int(time.time()), model, fingerprint, seed)


def make_choices(parts: AnswerParts) -> list[Choice]:
    """Empty choices, numbered prompt by prompt.

    Example: two prompts, three choices each
        prompt 0 has choices 0, 1, 2 and prompt 1 has choices 3, 4, 5
    """
    choices = []
    for prompt_number, prompt_ids in enumerate(parts.prompts):
        scores: list[TokenLogprobs] = []
        first = prompt_number * parts.num_choices
        choices += [Choice(first + index, prompt_ids, prompt_logprobs=scores) for index in range(parts.num_choices)]
    return choices


def usage_of(parts: AnswerParts, choices: Sequence[Choice]) -> Usage:
    """Emitted tokens only; a prompt counts once, however many choices it has, and as cached where it was for them all.

    So what the first choice computes and the others share is not cached: the request had to pay for it.
    """
    prompt_tokens = sum(len(prompt_ids) for prompt_ids in parts.prompts)
    completion_tokens = sum(len(choice.token_ids) for choice in choices)
    cached_tokens = sum(
        min(choice.num_cached_tokens for choice in choices[first : first + parts.num_choices])
        for first in range(0, len(choices), parts.num_choices)
    )
    usage: Usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
    if parts.has_thoughts:
        num_reasoning = sum(choice.num_reasoning_tokens for choice in choices)
        usage["completion_tokens_details"] = {"reasoning_tokens": num_reasoning}
    return usage


def metrics_of(choices: Sequence[Choice]) -> Metrics:
    """How drafts fared in the answer, counting only steps that had some; null for several choices or without drafts.

    Steps of 3, 0 and 2 drafts with 1, 0 and 2 accepted: histogram [0, 1, 1, 0], 5 draft tokens, mean length 2.5.
    """
    if len(choices) != 1 or not choices[0].acceptance:
        return {"speculative_decoding": None}
    choice = choices[0]
    num_steps = sum(choice.acceptance.values())
    num_accepted = sum(accepted * steps for accepted, steps in choice.acceptance.items())
    return {
        "speculative_decoding": {
            "mean_acceptance_length": 1 + num_accepted / num_steps,
            "draft_acceptance_rate": num_accepted / choice.num_draft_tokens,
            "acceptance_histogram": [choice.acceptance[n] for n in range(choice.max_draft_tokens + 1)],
            "num_spec_steps": num_steps,
            "num_accepted_draft_tokens": num_accepted,
            "num_draft_tokens": choice.num_draft_tokens,
        }
    }
