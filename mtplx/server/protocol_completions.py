"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, FailFast, Field, Tag
from typing_extensions import TypeAliasType

from mtplx.errors import RequestError
from mtplx.model.spec import ModelSpec
from mtplx.sampling_params import MAX_TOP_LOGPROBS, SamplingParams
from mtplx.server.protocol import INVALID, MAX_CHOICES, Refused, TokenIds, shape_of
from mtplx.server.protocol_grammar import StructuredRequest

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


class CompletionRequest(StructuredRequest):
    """One or more prompts to be continued."""

    prompt: Prompt = Field(
        description="a string, token ids, or a list of either: each entry is a request of its own, and choices are "
        "numbered prompt by prompt"
    )
    best_of: int | None = Field(None, ge=1, le=MAX_CHOICES, description="only equal to n: choices are not ranked")
    logprobs: int | None = Field(
        None, ge=0, le=MAX_TOP_LOGPROBS, description="log-probability of every token and of so many likeliest"
    )
    echo: Annotated[Any, Refused("the prompt is not repeated in the answer", (None, False))] = None
    suffix: Annotated[Any, Refused("text can't be inserted before other text", (None, ""))] = None

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
                f"best_of {self.best_of} is not supported: choices are not ranked, so it can only equal n", "best_of"
            )
        return self.to_sampling_params(spec, max_tokens=self.max_tokens, logprobs=self.logprobs)
