"""The fields beyond OpenAI's that clients of vLLM know: those that are obeyed, and those that are refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import FailFast, Field
from typing_extensions import TypeAliasType

from mtplx.errors import RequestError
from mtplx.model.spec import ModelSpec
from mtplx.sampling_params import MAX_TOP_LOGPROBS, SamplingParams
from mtplx.server.protocol.grammar import StructuredRequest
from mtplx.server.protocol.strict import Accepted, Refused, TokenIds, check_token_ids

MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARACTERS = 256

BadWords = TypeAliasType(
    "BadWords",
    Annotated[
        tuple[Annotated[str, Field(pattern=r"\S", max_length=MAX_BAD_WORD_CHARACTERS)], ...],
        Field(max_length=MAX_BAD_WORDS),
        FailFast(),
    ],
)
NO_BEAMS = "there is no beam search"


class ExtendedRequest(StructuredRequest):
    """What chat and text completions both take of them."""

    include_stop_str_in_output: bool | None = Field(
        None, description="the stop string or token that ended the answer is part of it; default false"
    )
    skip_special_tokens: bool | None = Field(
        None, description="default true: the text has no special tokens; false: it has them as they are spelled"
    )
    spaces_between_special_tokens: Annotated[bool | None, Accepted("this server's tokenizers never put any")] = None
    bad_words: BadWords | None = Field(
        None, description="texts that never come in the answer, as far as they are spelled by their usual tokens"
    )
    allowed_token_ids: Annotated[TokenIds, Field(min_length=1)] | None = Field(
        None, description="no other token can come, the model's end-of-sequence tokens neither; a grammar needs one"
    )
    prompt_logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_TOP_LOGPROBS,
        description="log-probability of every prompt token but the first, and of so many likeliest; not in a stream",
    )
    truncate_prompt_tokens: int | None = Field(None, ge=1, description="keep only so many tokens, the prompt's last")
    add_special_tokens: bool | None = Field(
        None,
        description="whether the tokenizer adds its own, such as bos; default: for a completion's text, not in a chat",
    )
    use_beam_search: Annotated[Any, Refused(NO_BEAMS, (None, False))] = None
    length_penalty: Annotated[Any, Refused(NO_BEAMS, (None, 1, 1.0))] = None
    early_stopping: Annotated[Any, Refused(NO_BEAMS, (None, False))] = None
    logits_processors: Annotated[Any, Refused("no code of clients is run", (None, []))] = None
    return_tokens_as_token_ids: Annotated[Any, Refused("return_token_ids gives the ids", (None, False))] = None
    request_id: Annotated[Any, Refused("the header x-request-id names a request")] = None
    kv_transfer_params: Annotated[Any, Refused("the cache stays in this server")] = None
    vllm_xargs: Annotated[Any, Refused("there are no such extensions", (None, {}))] = None

    def truncated(self, prompt_ids: Sequence[int]) -> Sequence[int]:
        """As much of a prompt as the model is to see."""
        return prompt_ids if self.truncate_prompt_tokens is None else prompt_ids[-self.truncate_prompt_tokens :]

    def to_sampling_params(self, spec: ModelSpec, *, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
        params = super().to_sampling_params(spec, max_tokens=max_tokens, logprobs=logprobs)
        if self.prompt_logprobs is not None and self.stream:
            raise RequestError("prompt_logprobs come with a whole answer: leave out stream", "prompt_logprobs")
        check_token_ids(self.allowed_token_ids or (), spec.vocab_size, "allowed_token_ids")
        stop_ids = spec.eos_ids.union(params.stop_token_ids)
        if params.min_tokens and self.allowed_token_ids and stop_ids.issuperset(self.allowed_token_ids):
            raise RequestError("allowed_token_ids leave no token that min_tokens could be made of", "allowed_token_ids")
        return replace(
            params,
            include_stop_str_in_output=bool(self.include_stop_str_in_output),
            skip_special_tokens=self.skip_special_tokens is not False,
            bad_words=self.bad_words or (),
            allowed_token_ids=self.allowed_token_ids,
            prompt_logprobs=self.prompt_logprobs,
        )
