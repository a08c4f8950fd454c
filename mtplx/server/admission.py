"""What can be admitted at all, decided before any work: by length, by cache, by queue."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from mtplx.batching.state import StopRules
from mtplx.errors import ContextLengthError, OverloadedError, RequestError, TooManyRequestsError
from mtplx.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a server can hold, fixed at start-up."""

    max_model_len: int  # tokens of prompt and answer together
    cache_tokens: int  # a request that needs more could never run
    max_live: int  # running plus waiting sequences
    eos_ids: frozenset[int]
    max_live_per_tenant: int | None = None  # of them those of one API key; None leaves all to any
    max_request_s: float | None = None  # from admission to the end of the answer; None leaves it open

    def unqueued(self) -> Limits:
        """The same without a bound on waiting requests, for callers in the same process."""
        return replace(self, max_live=sys.maxsize, max_live_per_tenant=None)

    def stop_rules(self, prompt_len: int, params: SamplingParams) -> StopRules:
        """Where an answer to a prompt of that many tokens ends; without `max_tokens` it may fill what room there is.

        Raises:
            RequestError: the prompt is empty, or the grammar's end is no token that may come.
            ContextLengthError: prompt and answer can't fit.
        """
        max_tokens = self._max_tokens(prompt_len, params.max_tokens)
        if params.min_tokens > max_tokens:
            raise ContextLengthError(
                f"min_tokens {params.min_tokens} is over the {max_tokens} tokens that can follow this prompt",
                "min_tokens",
            )
        eos_ids = frozenset() if params.ignore_eos else self.eos_ids
        stop_ids = eos_ids | frozenset(params.stop_token_ids)
        if params.grammar and params.allowed_token_ids and stop_ids.isdisjoint(params.allowed_token_ids):
            raise RequestError(
                f"allowed_token_ids have no token that could end an answer where {params.grammar.param} does",
                "allowed_token_ids",
            )
        return StopRules(max_tokens, stop_ids)

    def time_of(self, timeout_s: float | None) -> float | None:
        """The seconds that a request has, which asks for `timeout_s`; None where neither it nor the server says."""
        return min((limit for limit in (timeout_s, self.max_request_s) if limit is not None), default=None)

    def check_room(self, *, num_live: int, num_prompts: int, n: int, num_live_of_tenant: int = 0) -> None:
        """Counts choices, not requests: `n` for each prompt.

        Raises:
            RequestError: so many could never be held at once.
            TooManyRequestsError: not now, the tenant has its share.
            OverloadedError: not now.
        """
        num_more = num_prompts * n
        share = self.max_live if self.max_live_per_tenant is None else min(self.max_live, self.max_live_per_tenant)
        if num_more > share:
            asked = f"n {n}" if num_prompts == 1 else f"{num_prompts} prompts with n {n} make {num_more} answers"
            raise RequestError(
                f"{asked}: that is over this server's limit of {share} at once",
                "n" if n > 1 else "prompt",
            )
        if self.max_live_per_tenant is not None and num_live_of_tenant + num_more > self.max_live_per_tenant:
            raise TooManyRequestsError(
                f"{num_live_of_tenant} sequences of this API key are running or waiting and {num_more} more are over "
                f"its limit of {self.max_live_per_tenant}; try again later"
            )
        if num_live + num_more > self.max_live:
            raise OverloadedError(
                f"{num_live} sequences are running or waiting and {num_more} more are over the limit of "
                f"{self.max_live}; try again later"
            )

    def _max_tokens(self, prompt_len: int, asked: int | None) -> int:
        if prompt_len == 0:
            raise RequestError("the prompt has no tokens", "prompt")
        room = min(self.max_model_len, self.cache_tokens) - prompt_len
        max_tokens = max(room, 1) if asked is None else asked
        total = prompt_len + max_tokens
        if total > self.max_model_len:
            raise ContextLengthError(
                f"{prompt_len} prompt tokens and {max_tokens} to answer are over the limit of "
                f"{self.max_model_len} tokens of prompt and answer together",
                "prompt" if prompt_len >= self.max_model_len else "max_tokens",
            )
        if total > self.cache_tokens:
            raise ContextLengthError(
                f"{prompt_len} prompt tokens and {max_tokens} to answer could never fit the cache of "
                f"{self.cache_tokens} tokens",
                "prompt" if prompt_len >= self.cache_tokens else "max_tokens",
            )
        return max_tokens
