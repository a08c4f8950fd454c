"""What a request asks of the next-token function and of its end; plain values, checked once, no tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mtplx.errors import RequestError

MAX_STOP_STRINGS = 16
MAX_TOP_LOGPROBS = 20
MAX_SEED = 2**64 - 1
REPETITION_PENALTIES = (0.01, 100.0)  # least and most: any score, divided or multiplied by one, stays finite
MAX_DRAFT_DEPTH = 8
MAX_GRAMMAR_BYTES = 128 * 1024


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer must be a text of: a JSON Schema (as JSON text), a regular expression, or a grammar in Lark.

    The languages are llguidance's (https://github.com/guidance-ai/llguidance/tree/main/docs). `param` names the field
    it comes from, for error messages alone.

    Raises:
        RequestError: the source is too long, or isn't valid Unicode.
    """

    kind: Literal["json_schema", "regex", "lark"]
    source: str
    param: str = field(default="grammar", compare=False)

    def __post_init__(self) -> None:
        try:
            num_bytes = len(self.source.encode())
        except UnicodeEncodeError as error:
            raise RequestError(f"{self.param} is not valid Unicode", self.param) from error
        if num_bytes > MAX_GRAMMAR_BYTES:
            raise RequestError(f"{self.param} has {num_bytes} bytes, over {MAX_GRAMMAR_BYTES}", self.param)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The sampling fields of one request, shared by all its choices.

    `draft_depth` caps the tokens guessed ahead, for speed alone: no answer depends on it; None leaves it to the server.
    `seed` None means that a random one is drawn at admission and reported. `logprobs` None means none are wanted, 0 the
    chosen token's alone, k also the k likeliest; `prompt_logprobs` the same of the prompt's tokens but the first.
    `bad_words` are banned as the tokens that spell them, which are added to `banned_runs` at admission: of each run the
    last token can't come where the answer ends with those before it. `allowed_token_ids` None allows all.
    `max_tokens` None means up to the context limit, 0 nothing but the prompt's scores. `top_k` 0 and `top_p` 1.0 and
    `min_p` 0.0 keep every token. Under a `grammar` the answer ends where that ends, so `min_tokens` only holds as long
    as the grammar can go on.

    Raises:
        RequestError: a value is out of its range; `param` names the field.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    bad_words: tuple[str, ...] = ()
    banned_runs: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    draft_depth: int | None = None
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        _in_range("temperature", self.temperature, 0.0, 2.0)
        _whole("top_k", self.top_k, 0, None)
        _in_range("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _in_range("min_p", self.min_p, 0.0, 1.0)
        _in_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _in_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _in_range("repetition_penalty", self.repetition_penalty, *REPETITION_PENALTIES)
        _whole("seed", self.seed, -(2**63), MAX_SEED)
        _whole("max_tokens", self.max_tokens, 0, None)
        _whole("min_tokens", self.min_tokens, 0, None)
        _whole("logprobs", self.logprobs, 0, MAX_TOP_LOGPROBS)
        _whole("prompt_logprobs", self.prompt_logprobs, 0, MAX_TOP_LOGPROBS)
        _whole("draft_depth", self.draft_depth, 0, MAX_DRAFT_DEPTH)
        for bias in self.logit_bias.values():
            _in_range("logit_bias", bias, -100.0, 100.0)
        for name, texts in (("stop", self.stop), ("bad_words", self.bad_words)):
            if not isinstance(texts, tuple | list):  # a string would be taken letter by letter
                raise RequestError(f"{name} must be a tuple of strings, got {texts!r:.64}", name)
            if any(not text.strip() if name == "bad_words" else not text for text in texts):
                raise RequestError(f"{name} must not hold an empty string", name)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise RequestError("allowed_token_ids must not be empty: nothing could be answered", "allowed_token_ids")
        if not all(self.banned_runs):
            raise RequestError("banned_runs must not hold an empty one", "banned_runs")
        if len(self.stop) > MAX_STOP_STRINGS:
            raise RequestError(f"stop takes at most {MAX_STOP_STRINGS} strings, got {len(self.stop)}", "stop")
        if self.grammar is not None and self.ignore_eos:
            raise RequestError("ignore_eos: an answer under a grammar ends where the grammar does", "ignore_eos")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(f"min_tokens {self.min_tokens} is over max_tokens {self.max_tokens}", "min_tokens")


def _whole(name: str, value: int | None, low: int, high: int | None) -> None:
    if isinstance(value, float):
        raise RequestError(f"{name} must be a whole number, got {value}", name)
    _in_range(name, value, low, high)


def _in_range(name: str, value: float | None, low: float | None, high: float | None, *, low_open: bool = False) -> None:
    if value is None:
        return
    if not isinstance(value, int | float):
        raise RequestError(f"{name} must be a number, got {value!r}", name)
    too_low = low is not None and (value <= low if low_open else value < low)
    too_high = high is not None and value > high
    if too_low or too_high or not math.isfinite(value):
        bounds = f"{'over' if low_open else 'at least'} {low}" + ("" if high is None else f" and at most {high}")
        raise RequestError(f"{name} must be {bounds}, got {value}", name)
