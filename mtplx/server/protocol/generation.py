"""The fields that chat and text completions share, and those about the engine, which every API takes."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import Field

from mtplx.errors import RequestError
from mtplx.model.spec import ModelSpec
from mtplx.sampling_params import MAX_DRAFT_DEPTH, MAX_SEED, MAX_STOP_STRINGS, REPETITION_PENALTIES, SamplingParams
from mtplx.server.protocol.strict import (
    Accepted,
    LogitBias,
    Metadata,
    Refused,
    Stop,
    StrictModel,
    TokenIds,
    check_token_ids,
)

MAX_CHOICES = 128
MAX_SALT_CHARACTERS = 256
MAX_COHORT_CHARACTERS = 256

_T = TypeVar("_T")


class StreamOptions(StrictModel):
    """What a stream carries besides the answer."""

    include_usage: bool | None = Field(None, description="a last chunk with the token counts and no choices")
    continuous_usage_stats: bool | None = Field(None, description="the token counts so far in every chunk")
    include_obfuscation: Annotated[Any, Refused("chunks are never padded", (None, False))] = None


class EngineFields(StrictModel):
    """What every API takes beside its own fields, since it is about the engine and not about an API."""

    seed: int | None = Field(
        None, ge=-(2**63), le=MAX_SEED, description="default: a random one; the answer reports the one used"
    )
    draft_depth: int | None = Field(
        None,
        ge=0,
        le=MAX_DRAFT_DEPTH,
        description="most tokens guessed ahead for this request; for speed alone, the answer is the same",
    )
    cache_salt: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_SALT_CHARACTERS,
        description="shares the computation of equal prompts only with requests of the same API key and salt",
    )
    cohort: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_COHORT_CHARACTERS,
        description="shares drafts with requests of the same key, salt and cohort; 400 where the mode has no cohorts",
    )
    priority: int | None = Field(
        None,
        ge=-(2**31),
        lt=2**31,
        description="of those that wait, higher ones start first, equals as they came; default 0",
    )
    timeout: float | None = Field(
        None, gt=0, description="seconds after which the answer ends with what it has; 504 if that is nothing"
    )


class GenerationRequest(EngineFields):
    """The fields that chat and text completions share; null means absent everywhere."""

    model: str = Field(description="the served model's name; another is 404 model_not_found")
    n: int | None = Field(
        None, ge=1, le=MAX_CHOICES, description="choices per prompt, default 1; all count in the queue"
    )
    max_tokens: int | None = Field(None, ge=1, description="most tokens of the answer")
    temperature: float | None = Field(
        None, ge=0, le=2, description="0 is greedy; default: the model's generation config, else 1"
    )
    top_p: float | None = Field(
        None, gt=0, le=1, description="keep the likeliest tokens up to this mass; default: the model's, else 1"
    )
    presence_penalty: float | None = Field(None, ge=-2, le=2, description="default 0; over the answer's tokens")
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="default 0; over the answer's tokens")
    logit_bias: LogitBias | None = Field(None, description="token id to a number added to its logit")
    stop: Stop | None = Field(None, description=f"up to {MAX_STOP_STRINGS} strings that end the answer; not in it")
    stream: bool | None = Field(None, description="server-sent events instead of one body")
    stream_options: StreamOptions | None = Field(None, description="only together with stream")
    user: Annotated[str | None, Accepted("names the caller's user")] = None
    metadata: Annotated[Metadata | None, Accepted("labels for stored answers, and none are stored")] = None
    top_k: int | None = Field(
        None, ge=-1, description="keep the k likeliest tokens; 0 or -1 keep all; default: the model's, else all"
    )
    min_p: float | None = Field(
        None, ge=0, le=1, description="keep tokens at least this likely beside the likeliest; default 0"
    )
    repetition_penalty: float | None = Field(
        None,
        ge=REPETITION_PENALTIES[0],
        le=REPETITION_PENALTIES[1],
        description="{} to {}, default 1; over prompt and answer".format(*REPETITION_PENALTIES),
    )
    min_tokens: int | None = Field(None, ge=0, description="no end before this many tokens; default 0")
    ignore_eos: bool | None = Field(None, description="the model's end-of-sequence tokens don't end the answer")
    stop_token_ids: TokenIds | None = Field(None, description="token ids that end the answer")
    return_token_ids: bool | None = Field(None, description="token ids of prompt and choices in the answer")

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def wants_usage_chunk(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def wants_running_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)

    def to_sampling_params(self, spec: ModelSpec, *, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
        """The same wishes in the engine's words, with the model's own defaults filled in.

        Raises:
            RequestError: fields contradict each other or name tokens that the model doesn't have.
        """
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options needs stream: true", "stream_options")
        bias = {int(token_id): value for token_id, value in (self.logit_bias or {}).items()}
        check_token_ids(tuple(bias), spec.vocab_size, "logit_bias")
        check_token_ids(self.stop_token_ids or (), spec.vocab_size, "stop_token_ids")
        if self.min_tokens and len(spec.eos_ids.union(self.stop_token_ids or ())) >= spec.vocab_size:
            raise RequestError("stop_token_ids leave no token that min_tokens could be made of", "stop_token_ids")
        return SamplingParams(
            temperature=_first(self.temperature, spec.default_temperature, 1.0),
            top_k=max(0, _first(self.top_k, spec.default_top_k, 0)),
            top_p=_first(self.top_p, spec.default_top_p, 1.0),
            min_p=_first(self.min_p, 0.0),
            presence_penalty=_first(self.presence_penalty, 0.0),
            frequency_penalty=_first(self.frequency_penalty, 0.0),
            repetition_penalty=_first(self.repetition_penalty, 1.0),
            logit_bias=bias,
            seed=self.seed,
            max_tokens=max_tokens,
            min_tokens=_first(self.min_tokens, 0),
            ignore_eos=bool(self.ignore_eos),
            stop=(self.stop,) if isinstance(self.stop, str) else self.stop or (),
            stop_token_ids=self.stop_token_ids or (),
            logprobs=logprobs,
            draft_depth=self.draft_depth,
        )


def _first(*values: _T | None) -> _T:
    return next(value for value in values if value is not None)
