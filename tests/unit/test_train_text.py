"""The text that a model writes to itself: frames, prompts, where answers end, and what is kept of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from mtplx.batching.state import StepPlan
from mtplx.errors import ConfigError
from mtplx.text.chat import ChatTemplate
from mtplx.text.tokenizer import Tokenizer
from mtplx.train.prompts import make_frame, read_prompts
from mtplx.train.text import MAX_PROMPT_TOKENS, TOP_K, Frame, Writer, sample
from tests.fakes import write_byte_tokenizer

VOCAB, STOP = 100, 99
FRAME = Frame((1, 2), (3, 4), frozenset({STOP}))
CHATML = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}"
)


class Counting:
    """Says that after token t comes t + 1, up to 90, then 10 again; after `last` comes the stop. Hidden states name
    their token and position. Checks that each place keeps to blocks of its own."""

    def __init__(self, num_blocks: int = 64, last: int = 42) -> None:
        self.num_blocks, self.block_size = num_blocks, 16
        self.last = last
        self.owners: dict[int, int] = {}

    def run_with_hidden(self, plan: StepPlan) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        logits, hidden = [], []
        for row in plan.rows:
            for block in row.block_ids:
                assert self.owners.setdefault(block, row.seq_id) == row.seq_id
            assert row.end <= len(row.block_ids) * self.block_size
            hidden += [(token, row.start + index) for index, token in enumerate(row.token_ids)]
            if row.num_logits:
                last = row.token_ids[-1]
                likeliest = STOP if last == self.last else last + 1 if last < 90 else 10
                logits.append([100.0 if token == likeliest else 0.0 for token in range(VOCAB)])
        return np.array(logits, dtype=np.float32).reshape(-1, VOCAB), np.array(hidden, dtype=np.float32)


def test_a_passage_is_prompt_and_answer_in_their_frame_with_a_state_for_each_token() -> None:
    writer = Writer(Counting(), FRAME, width=3, max_answer_tokens=20)
    told: list[None] = []
    passages = writer.write(7, seed=1, on_passage=lambda: told.append(None))
    assert len(passages) == len(told) == 7
    for passage in passages:
        tokens = passage.token_ids.tolist()
        assert tokens[:2] == [1, 2]
        assert tokens[2:42] == list(range(3, 43))  # its own prompt; the stop that ended it isn't part of it
        assert tokens[42:44] == [3, 4]
        assert passage.answer_start == 44
        assert tokens[44:] == list(range(5, 25))
        states = passage.hidden.tolist()
        assert states == [[token, place] for place, token in enumerate(tokens[: len(states)])]
        assert len(states) == len(tokens) - 1


def test_given_prompts_are_answered_as_they_are_and_an_answer_ends_with_its_stop() -> None:
    writer = Writer(Counting(), FRAME, width=2, max_answer_tokens=20)
    found = sorted(passage.token_ids.tolist() for passage in writer.write(2, seed=1, prompts=[[7, 38], [50, 60, 70]]))
    assert found == [[7, 38, 39, 40, 41, 42, STOP], [50, 60, 70, *range(71, 91)]]


def test_a_prompt_without_an_end_and_a_prompt_too_long_are_cut() -> None:
    writer = Writer(Counting(num_blocks=16), FRAME, width=2, max_answer_tokens=20)
    (passage,) = writer.write(1, seed=1, prompts=[[50] * 300])
    assert passage.token_ids.tolist() == [50] * 108 + list(range(51, 71))  # 8 blocks of 16, less the answer
    endless = Frame((1, 50), (3,), frozenset({STOP}))
    (passage,) = Writer(Counting(last=-1), endless, width=2, max_answer_tokens=20).write(1, seed=1)
    assert passage.answer_start == 2 + MAX_PROMPT_TOKENS + 1


@pytest.mark.parametrize(("last", "length"), [(42, 1 + 40 + 33 + 1), (-1, 1 + 40 + 81 + 53)])
def test_an_answer_that_goes_round_in_circles_is_ended_and_no_other(last: int, length: int) -> None:
    """From 50 up to 90, then 10 to 90 again and again; its last 12 tokens come for the third time at 51 to 62."""
    writer = Writer(Counting(last=last), FRAME, width=1, max_answer_tokens=600)
    (passage,) = writer.write(1, seed=1, prompts=[[50]])
    assert len(passage.token_ids) == length


def test_greedy_rows_take_the_likeliest_and_sampled_ones_what_their_seed_says() -> None:
    logits = np.random.default_rng(3).standard_normal((4, VOCAB)).astype(np.float32)

    def draw(temperatures: list[float], seed: int) -> list[int]:
        return sample(logits, temperatures, torch.Generator().manual_seed(seed))

    assert draw([0.0] * 4, 1) == logits.argmax(axis=1).tolist()
    assert draw([1.0] * 4, 1) == draw([1.0] * 4, 1)
    drawn = {token for seed in range(300) for token in draw([1.0] * 4, seed)[:1]}
    assert len(drawn) > 20
    assert drawn <= set(np.argsort(-logits[0])[:TOP_K].tolist())


def chat_model(folder: Path, template: str | None) -> tuple[ChatTemplate, Tokenizer]:
    write_byte_tokenizer(folder)
    return ChatTemplate(template, {}), Tokenizer.load(folder)


def test_the_frame_is_what_the_template_puts_around_a_users_words(tmp_path: Path) -> None:
    template, tokenizer = chat_model(tmp_path, CHATML)
    frame = make_frame(template, tokenizer, frozenset({2}))
    assert tokenizer.decode(list(frame.before_prompt)) == "[user]"
    assert tokenizer.decode(list(frame.before_answer)) == "</><bot>"


def test_a_model_without_template_writes_on_from_its_first_token(tmp_path: Path) -> None:
    template, tokenizer = chat_model(tmp_path, None)
    frame = make_frame(template, tokenizer, frozenset({2}))
    assert frame.before_answer == ()
    assert len(frame.before_prompt) == 1


def test_prompts_of_a_file_are_messages_or_plain(tmp_path: Path) -> None:
    template, tokenizer = chat_model(tmp_path, CHATML)
    lines = [{"messages": [{"role": "user", "content": "hi"}]}, {"prompt": "you"}]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    found = [tokenizer.decode(ids) for ids in read_prompts(path, template, tokenizer)]
    assert found == ["[user]hi</><bot>", "[user]you</><bot>"]


@pytest.mark.parametrize("line", ["{", "[]", '{"text": "x"}', '{"prompt": ""}', '{"messages": []}'])
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, line: str) -> None:
    template, tokenizer = chat_model(tmp_path, CHATML)
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "good"}\n' + line)
    with pytest.raises(ConfigError, match="line 2"):
        read_prompts(path, template, tokenizer)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    template, tokenizer = chat_model(tmp_path, CHATML)
    with pytest.raises(ConfigError, match="can't be read"):
        read_prompts(tmp_path / "none.jsonl", template, tokenizer)
