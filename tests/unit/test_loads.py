"""Loads are what they say: the same from the same seed, sharing what is promised, another seed another load."""

from __future__ import annotations

import pytest

from benchmarks.loads import LOADS, SAMPLES_A_PROMPT, LoadRequest, agent_turns, samples


def text_of(request: LoadRequest) -> str:
    return "\n".join(f"{message['role']}: {message['content']}" for message in request.messages)


@pytest.mark.parametrize("name", LOADS)
@pytest.mark.parametrize("number", [1, 7, 100])
def test_as_many_as_asked_for_and_the_same_from_the_same_seed(name: str, number: int) -> None:
    load = LOADS[name](number, 3)
    assert len(load) == number
    assert load == LOADS[name](number, 3)
    assert load[: number // 2] != LOADS[name](number, 4)[: number // 2] or number == 1
    for request in load:
        assert request.messages[-1]["role"] == "user"
        assert all(message["content"] for message in request.messages)


@pytest.mark.parametrize("name", ["template", "edits"])
def test_all_begin_alike_and_none_are_equal(name: str) -> None:
    texts = [text_of(request) for request in LOADS[name](100, 1)]
    assert len(set(texts)) == 100
    num_common = next(place for place, letters in enumerate(zip(*texts, strict=False)) if len(set(letters)) > 1)
    assert num_common > 0.7 * min(map(len, texts))


def test_samples_are_choices_of_one_prompt_after_the_other() -> None:
    load = samples(3 * SAMPLES_A_PROMPT, 1)
    for begin in range(0, len(load), SAMPLES_A_PROMPT):
        group = load[begin : begin + SAMPLES_A_PROMPT]
        assert len({text_of(request) for request in group}) == 1
        assert [request.choice for request in group] == list(range(SAMPLES_A_PROMPT))
    assert len({text_of(request) for request in load}) == 3


def test_each_turn_of_an_agent_goes_on_from_the_last_and_repeats_the_tools_output() -> None:
    first, second, third = agent_turns(3, 1)
    assert second.messages[: len(first.messages)] == first.messages
    assert third.messages[: len(second.messages)] == second.messages
    outputs = [set(request.messages[-1]["content"].splitlines()) for request in (first, second)]
    assert len(outputs[0] & outputs[1]) == len(outputs[0]) - 1, "one line has changed"


def test_those_that_share_nothing_are_different_conversations() -> None:
    texts = [text_of(request) for request in LOADS["unshared"](60, 1)]
    assert len(set(texts)) == 60
    beginnings = {text[:60] for text in texts}
    assert len(beginnings) > 55
