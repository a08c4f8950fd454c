"""The body of POST /v1/completions."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Discriminator, FailFast, Field, Tag
from typing_extensions import TypeAliasType

from mtplx.errors import RequestError
from mtplx.model.spec import ModelSpec
from mtplx.sampling_params import MAX_TOP_LOGPROBS, SamplingParams
from mtplx.server.protocol.extended import ExtendedRequest
from mtplx.server.protocol.generation import MAX_CHOICES
from mtplx.server.protocol.strict import INVALID, UNSUPPORTED, Refused, TokenIds, shape_of

MAX_PROMPTS = 1024
DEFAULT_MAX_TOKENS = 16


def _shape_of_prompt(value: Any) -> str | None:
    if shape_of(value) != "<list>":
        return shape_of(value)
    first = value[0] if value else None
    if isinstance(first, str):
        return "<texts>"
    return "<token id lists>" if isinstance(first, list | tuple) else "<token ids>"


_PromptIds = Annotated[TokenIds, Field(min_length=1)]
Texts = TypeAliasType("Texts", Annotated[tuple[str, ...], Field(min_length=1, max_length=MAX_PROMPTS), FailFast()])
TokenIdLists = TypeAliasType(
    "TokenIdLists", Annotated[tuple[_PromptIds, ...], Field(min_length=1, max_length=MAX_PROMPTS), FailFast()]
)
Prompt = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[Texts, Tag("<texts>")]
    | Annotated[_PromptIds, Tag("<token ids>")]
    | Annotated[TokenIdLists, Tag("<token id lists>")],
    Discriminator(_shape_of_prompt, INVALID, "must be a string, a list of token ids, or a list of either"),
]


class CompletionRequest(ExtendedRequest):
    """One or more prompts to be continued."""

    prompt: Prompt = Field(
        description="a string, token ids, or a list of either: each entry is a request of its own, and choices are "
        "numbered prompt by prompt"
    )
    best_of: int | None = Field(None, ge=1, le=MAX_CHOICES, description="only equal to n: choices are not ranked")
    logprobs: int | None = Field(
        None, ge=0, le=MAX_TOP_LOGPROBS, description="log-probability of every token and of so many likeliest"
    )
    max_tokens: int | None = Field(
        None,
        ge=0,
        description="most tokens of the answer; 0 for those of the prompt alone, with echo or prompt_logprobs",
    )
    echo: bool | None = Field(None, description="the prompt comes before the answer, with logprobs of its tokens too")
    suffix: Annotated[Any, Refused("text can't be inserted before other text", (None, ""))] = None
    prompt_embeds: Annotated[Any, Refused("give text or token ids")] = None

    def prompts(self) -> tuple[str | tuple[int, ...], ...]:
        """The prompts one by one, each a text or token ids."""
        if isinstance(self.prompt, str):
            return (self.prompt,)
        if isinstance(self.prompt[0], int):
            return (self.prompt,)
        return self.prompt

    def sampling_params(self, spec: ModelSpec) -> SamplingParams:
        """The engine's view of the request; raises RequestError for fields that contradict each other."""
        if self.best_of is not None and self.best_of != self.num_choices:
            raise RequestError(
                f"best_of {self.best_of} is not supported: choices are not ranked, so it can only equal n",
                "best_of",
                UNSUPPORTED,
            )
        if self.max_tokens == 0 and not self.echo and self.prompt_logprobs is None:
            raise RequestError("max_tokens 0 answers nothing: it needs echo or prompt_logprobs", "max_tokens")
        params = self.to_sampling_params(spec, max_tokens=self.max_tokens, logprobs=self.logprobs)
        if self.echo and self.logprobs is not None:
            params = replace(params, prompt_logprobs=max(self.logprobs, self.prompt_logprobs or 0))
        return params
