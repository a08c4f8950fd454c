"""A model writes text to itself: prompts after its own template, then answers, with the hidden state of every token.

    template up to the user's words | a prompt, sampled | template up to the answer | an answer, greedy or sampled

The head will see exactly these states: they come from the runner and weights that will serve.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from mtplx.batching.state import Row, StepPlan
from mtplx.model.runner import Logits
from mtplx.train.shards import Passage

ANSWER_TEMPERATURES = (0.0, 0.7)  # in turn
PROMPT_TEMPERATURE = 1.0
MAX_PROMPT_TOKENS = 96
TOP_K = 64  # of samples: the far tail of a small model is noise
_PREFILL_TOKENS = 64  # of one sequence in one step
_LOOP_TOKENS = 12  # an answer that ends in the same so many tokens for the third time goes round in circles


class HiddenRunner(Protocol):
    """A runner that also tells the hidden states of every token."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def block_size(self) -> int: ...

    def run_with_hidden(self, plan: StepPlan) -> tuple[Logits, npt.NDArray[np.float32]]:
        """Logits as of `Runner.run`, and hidden_ND of all tokens after the final norm, in plan order."""
        ...


@dataclass(frozen=True, slots=True)
class Frame:
    """The template around a prompt and its answer, as token ids; any of `stop_ids` ends either."""

    before_prompt: tuple[int, ...]
    before_answer: tuple[int, ...]
    stop_ids: frozenset[int]

    @property
    def num_tokens(self) -> int:
        return len(self.before_prompt) + len(self.before_answer)


@dataclass(slots=True)
class _Draft:
    """A passage being written, in a place of the batch that has its cache blocks."""

    token_ids: list[int]
    temperature: float
    max_len: int
    is_prompt: bool  # still writing the prompt
    answer_start: int = 0
    num_computed: int = 0
    hidden: list[npt.NDArray[np.float16]] = field(default_factory=list)


class Writer:
    """Writes passages, `width` at a time; the same seed, prompts, width and model give the same ones."""

    def __init__(self, runner: HiddenRunner, frame: Frame, *, width: int, max_answer_tokens: int) -> None:
        """Takes an equal part of the runner's cache for each of `width` passages; nothing else may use it."""
        self._runner = runner
        self._frame = frame
        self._num_blocks = runner.num_blocks // width
        self._max_len = self._num_blocks * runner.block_size
        self._max_answer = max_answer_tokens
        self._width = width
        assert self._max_len >= frame.num_tokens + MAX_PROMPT_TOKENS + max_answer_tokens, "the cache is too small"

    def write(
        self,
        count: int,
        seed: int,
        prompts: Sequence[Sequence[int]] = (),
        on_passage: Callable[[], None] = lambda: None,
    ) -> list[Passage]:
        """`count` passages in no particular order; the first answer `prompts`, the others begin with the model's own.

        A prompt is token ids up to where the answer begins; one too long to leave room for an answer is cut. Answers
        end early where they go round in circles. `on_passage` is called for each that has ended.
        """
        generator = torch.Generator().manual_seed(seed)
        to_write = [self._begin(index, prompts) for index in range(count)]
        places: list[_Draft | None] = [None] * self._width
        done: list[Passage] = []
        while to_write or any(places):
            for place, draft in enumerate(places):
                if draft is None and to_write:
                    places[place] = to_write.pop()
            running = [(place, draft) for place, draft in enumerate(places) if draft is not None]
            self._step(running, generator)
            for place, draft in running:
                if self._has_ended(draft):
                    places[place] = None
                    done.append(_passage(draft))
                    on_passage()
        return done

    def _begin(self, index: int, prompts: Sequence[Sequence[int]]) -> _Draft:
        frame = self._frame
        draft = _Draft(
            token_ids=list(frame.before_prompt),
            temperature=ANSWER_TEMPERATURES[index % len(ANSWER_TEMPERATURES)],
            max_len=len(frame.before_prompt) + MAX_PROMPT_TOKENS,
            is_prompt=True,
        )
        if index < len(prompts):
            draft.token_ids = list(prompts[index][: self._max_len - self._max_answer])
            self._begin_answer(draft)
        return draft

    def _begin_answer(self, draft: _Draft) -> None:
        draft.is_prompt = False
        draft.answer_start = len(draft.token_ids)
        draft.max_len = draft.answer_start + self._max_answer

    def _step(self, running: Sequence[tuple[int, _Draft]], generator: torch.Generator) -> None:
        """Computes a piece of every passage, and one token more of each whose piece was its last."""
        rows = [self._row(place, draft) for place, draft in running]
        logits_WV, hidden_ND = self._runner.run_with_hidden(StepPlan(tuple(rows)))
        begin, writing = 0, []
        for row, (_, draft) in zip(rows, running, strict=True):
            draft.hidden.append(hidden_ND[begin : begin + len(row.token_ids)].astype(np.float16))
            draft.num_computed = row.end
            begin += len(row.token_ids)
            if row.num_logits:
                writing.append(draft)
        if not writing:
            return
        temperatures = [PROMPT_TEMPERATURE if draft.is_prompt else draft.temperature for draft in writing]
        for draft, token_id in zip(writing, sample(logits_WV, temperatures, generator), strict=True):
            if draft.is_prompt and (token_id in self._frame.stop_ids or len(draft.token_ids) >= draft.max_len):
                draft.token_ids += self._frame.before_answer
                self._begin_answer(draft)
            else:
                draft.token_ids.append(token_id)

    def _row(self, place: int, draft: _Draft) -> Row:
        end = min(len(draft.token_ids), draft.num_computed + _PREFILL_TOKENS)
        first_block = place * self._num_blocks
        return Row(
            seq_id=place,
            start=draft.num_computed,
            token_ids=tuple(draft.token_ids[draft.num_computed : end]),
            block_ids=tuple(range(first_block, first_block + self._num_blocks)),
            num_logits=1 if end == len(draft.token_ids) else 0,
        )

    def _has_ended(self, draft: _Draft) -> bool:
        if draft.is_prompt or draft.num_computed < draft.answer_start:
            return False
        answer = draft.token_ids[draft.answer_start :]
        has_stopped = bool(answer) and answer[-1] in self._frame.stop_ids
        return has_stopped or len(draft.token_ids) >= draft.max_len or _goes_round(answer)


def sample(logits_RV: Logits, temperatures: Sequence[float], generator: torch.Generator) -> list[int]:
    """One token a row, among the TOP_K likeliest; temperature 0 takes the likeliest."""
    values_RK, ids_RK = torch.topk(torch.from_numpy(logits_RV), TOP_K, dim=1)
    temperatures_R1 = torch.tensor(temperatures)[:, None]
    noise_RK = -torch.empty_like(values_RK).exponential_(generator=generator).log()
    chosen_R1 = (values_RK + noise_RK * temperatures_R1).argmax(dim=1, keepdim=True)
    return ids_RK.gather(1, chosen_R1)[:, 0].tolist()


def _goes_round(answer: Sequence[int]) -> bool:
    tail = list(answer[-_LOOP_TOKENS:])
    if len(answer) < 3 * _LOOP_TOKENS:
        return False
    first = tail[0]
    begins = [i for i in range(len(answer) - _LOOP_TOKENS) if answer[i] == first]
    return sum(list(answer[i : i + _LOOP_TOKENS]) == tail for i in begins) >= 2


def _passage(draft: _Draft) -> Passage:
    hidden_ND = np.concatenate(draft.hidden)
    return Passage(np.array(draft.token_ids, dtype=np.int32), hidden_ND, draft.answer_start)
