"""The engine in your own process, without a server: `with Engine() as engine: engine.generate([...])`."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypedDict, Unpack, cast

from mtplx.batching.state import FinishReason, SchedulerMode
from mtplx.config import load_settings
from mtplx.decode.logprobs import TokenLogprobs
from mtplx.errors import MtplxError, RequestError
from mtplx.sampling_params import SamplingParams
from mtplx.server.assemble import assemble
from mtplx.server.choice_text import Delta
from mtplx.server.engine import Cancel, Submit
from mtplx.server.stream import RequestStream, Streams, Terms

Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer; asking again with the same prompt, parameters and `seed` gives it again."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_token_ids: tuple[int, ...]
    seed: int
    logprobs: tuple[TokenLogprobs, ...]
    prompt_logprobs: tuple[TokenLogprobs, ...]  # of the prompt's tokens but the first, where they were asked for


class TermFields(TypedDict, total=False):
    """How requests stand among others, as in a request to a server: see `Terms`."""

    cache_salt: str
    cohort: str
    priority: int
    timeout_s: float | None


class Engine:
    """A model in this process, for one thread at a time. `settings` are those of `mtplx serve`, by their field names.

    Raises:
        ConfigError, ModelError: as at a server's start.
    """

    def __init__(self, model: str | None = None, **settings: Any) -> None:
        if model is not None:
            settings["model"] = model
        self._assembly = assemble(load_settings(settings))
        self._core = self._assembly.core
        self._is_closed = False
        self._streams = Streams(
            self._assembly.tokenizer,
            self._assembly.limits.unqueued(),
            send=self._apply,
            read_status=self._core.status,
        )

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives the model's memory back."""
        self._is_closed = True
        self._core.runner.close()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | None = None,
        *,
        n: int = 1,
        **terms: Unpack[TermFields],
    ) -> list[Completion]:
        """Completes every prompt (text or token ids), all together; `n` answers each, prompt by prompt.

        Raises:
            RequestError: a prompt or parameter can't be obeyed; nothing was generated.
            MtplxError: the engine is closed.
            GenerationError: the model failed on one of them; NoTokenLeftError, if the params left it no token.
            DeadlineError: the terms' time was over before there was a token.
        """
        if self._is_closed:
            raise MtplxError("this engine is closed")
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise RequestError(f"params must be one SamplingParams for all prompts, got {params!r:.64}", "params")
        encoded = [self._encode(prompt) for prompt in _as_list(prompts)]
        self._check_ids([*params.logit_bias, *params.stop_token_ids], "logit_bias and stop_token_ids")
        self._check_ids(params.allowed_token_ids or (), "allowed_token_ids")
        grammar = self._assembly.grammars.compile(params.grammar) if params.grammar else None
        streams = self._streams.open_many(
            encoded, params, n, continues=True, terms=self._terms(**terms), grammar=grammar
        )
        try:
            while self._core.has_work:
                self._streams.dispatch(self._core.step())
            return [answer for stream in streams for answer in _completions(stream, n)]
        finally:
            for stream in streams:
                stream.close()

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        *,
        n: int = 1,
        **terms: Unpack[TermFields],
    ) -> list[Completion]:
        """Answers a conversation through the model's chat template; `n` answers."""
        prompt = self._assembly.chat_template.render(messages)
        prompt_ids = self._assembly.tokenizer.encode(prompt, add_special_tokens=False)
        return self.generate([prompt_ids], params, n=n, **terms)

    def _encode(self, prompt: Prompt) -> Sequence[int]:
        if isinstance(prompt, str):
            return self._assembly.tokenizer.encode(prompt, add_special_tokens=True)
        ids = [operator.index(token_id) for token_id in prompt]  # numpy's integers too
        self._check_ids(ids, "prompts")
        return ids

    def _terms(
        self, cache_salt: str = "", cohort: str = "", priority: int = 0, timeout_s: float | None = None
    ) -> Terms:
        mode = self._core.scheduler.mode
        if cohort and mode is not SchedulerMode.MTP_COHORT_EXPERIMENTAL:
            raise RequestError(f"this engine runs {mode}, which has no cohorts", "cohort")
        if timeout_s is not None and not timeout_s > 0:
            raise RequestError(f"timeout_s must be over 0, got {timeout_s}", "timeout_s")
        return Terms(
            cache_salt=cache_salt.encode(),
            cohort=cohort.encode(),
            priority=operator.index(priority),
            timeout_s=timeout_s,
        )

    def _check_ids(self, token_ids: Iterable[int], param: str) -> None:
        vocab_size = self._core.runner.spec.vocab_size
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                raise RequestError(f"token id {token_id} is not one of this model's {vocab_size}", param)

    def _apply(self, message: Submit | Cancel) -> None:
        if isinstance(message, Submit):
            self._core.add(message)
        else:
            self._core.cancel(message)


def _as_list(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    if isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], numbers.Integral)):
        return [cast(Prompt, prompts)]
    return cast(Sequence[Prompt], prompts)


def _completions(stream: RequestStream, n: int) -> list[Completion]:
    by_choice: list[list[Delta]] = [[] for _ in range(n)]
    for delta in stream.drain():
        by_choice[delta.index].append(delta)
    prompt_logprobs = tuple(entry for delta in by_choice[0] for entry in delta.prompt_logprobs)
    return [_join(stream, deltas, prompt_logprobs) for deltas in by_choice]


def _join(stream: RequestStream, deltas: Sequence[Delta], prompt_logprobs: tuple[TokenLogprobs, ...]) -> Completion:
    finish_reason = deltas[-1].finish_reason
    assert finish_reason is not None, "the engine ran until all had ended"
    return Completion(
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        finish_reason=finish_reason,
        prompt_token_ids=stream.prompt_ids,
        seed=stream.seed,
        logprobs=tuple(entry for delta in deltas for entry in delta.logprobs),
        prompt_logprobs=prompt_logprobs,
    )
