"""The benchmarks' page lists every script, results can be drawn again, and what is counted is counted right."""

from __future__ import annotations

import json
import random
import re
from itertools import count
from pathlib import Path

import pytest

from benchmarks.acceptance import BEFORE_REPEAT, WHOLE, Told, first_repeat, tally, tally_of
from benchmarks.draft_levels import Levels, WrongHead
from benchmarks.engines import PROMPTS, Answer, DraftStep, Prompt, answer_all, engine_of, submit_of
from benchmarks.identity import Kept, MarginRecorder, compare, first_difference
from benchmarks.plots import Plot, draw
from benchmarks.report import criterion, publish, without_folders
from benchmarks.speculation import Sample, Way, best_of_fixed, pairwise_ratios, run_block
from mtplx.batching.state import SchedulerMode
from mtplx.sampling_params import SamplingParams
from mtplx.server.engine import Submit
from tests.fakes import FakeDraftingRunner, FakeRunner, flat_costs

FOLDER = Path(__file__).parents[2] / "benchmarks"
PAGE = (FOLDER / "README.md").read_text()
SCRIPTS = {path.stem for path in FOLDER.glob("*.py") if '__name__ == "__main__"' in path.read_text()}


def test_every_script_is_listed_with_its_command() -> None:
    listed = re.findall(r"^\| (\w+) \|.*\| `python -m benchmarks\.(\w+)[^`]*` \|$", PAGE, flags=re.MULTILINE)
    assert [name for name, _ in listed] == [module for _, module in listed]
    assert sorted(name for name, _ in listed) == sorted(SCRIPTS)


def test_every_other_module_is_named_as_none() -> None:
    modules = {path.name for path in FOLDER.glob("*.py") if path.stem not in SCRIPTS | {"__init__"}}
    assert set(re.findall(r"\b\w+\.py\b", PAGE)) == modules


def test_a_result_is_kept_and_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [
        {"width": width, "way": way, "tokens/s": 10.0 * width, "tokens/s spread": (9.0 * width, 12.0 * width)}
        for width in (1, 2)
        for way in ("first way", "second way")
    ]
    limits = [criterion("ratio", [1.0, 2.0, 1.7], least=1.5), criterion("growth", [3.0], most=2.0)]
    kept = publish(
        "widths",
        rows,
        model="none",
        output=tmp_path / "widths.json",
        tables={"criteria": limits},
        plot=Plot("width", ("tokens/s",), "way"),
    )
    content = json.loads(kept.read_text())
    assert content["rows"][3]["tokens/s spread"] == [18.0, 24.0]
    assert [row["met"] for row in content["tables"]["criteria"]] == ["yes", "NO"]
    drawn = kept.with_suffix(".svg").read_bytes()
    assert b"first way" in drawn
    assert b"second way" in drawn
    kept.with_suffix(".svg").unlink()
    assert draw(kept) == kept.with_suffix(".svg")
    assert kept.with_suffix(".svg").read_bytes() == drawn


def test_a_result_without_a_plot_is_not_drawn(tmp_path: Path) -> None:
    kept = publish("alone", [{"case": "only", "ms": 1.0}], model="none", output=tmp_path / "alone.json")
    assert draw(kept) is None
    assert list(tmp_path.iterdir()) == [kept]


def test_commands_are_kept_without_the_folders_of_one_machine() -> None:
    words = ["--output", "/some/where/a.json", "--model=/else/where/m.gguf", "build/bin/x", "--threads=2"]
    assert [without_folders(word) for word in words] == [
        "--output",
        "a.json",
        "--model=m.gguf",
        "build/bin/x",
        "--threads=2",
    ]


def test_the_prompts_are_many_different_conversations() -> None:
    conversations = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    assert len(conversations) >= 120
    assert len({str(conversation["messages"]) for conversation in conversations}) == len(conversations)
    assert str(len(conversations)) in PAGE
    for conversation in conversations:
        roles = [message["role"] for message in conversation["messages"]]
        turns = roles[1:] if roles[0] == "system" else roles
        assert turns == ["user", "assistant"] * (len(turns) // 2) + ["user"]
        assert all(message["content"].strip() == message["content"] != "" for message in conversation["messages"])


class TestAcceptance:
    def test_a_repeat_is_a_group_of_four_that_was_there_before(self) -> None:
        assert first_repeat([1, 2, 3, 4, 1, 2, 3, 4]) == 7
        assert first_repeat([5, 5, 5, 5, 5]) == 4, "overlapping groups count"
        assert first_repeat([1, 2, 3, 1, 2, 3]) == 6, "three in a row are no repeat"
        assert first_repeat([]) == 0

    def test_a_draft_is_tried_when_all_before_it_were_accepted(self) -> None:
        found = tally([DraftStep(1, 2, 3, 1), DraftStep(3, 4, 3, 3), DraftStep(7, 1, 0, 0), DraftStep(8, 1, 2, 0)], 3)
        assert (found.tried, found.accepted) == ((3, 2, 1), (2, 1, 1))
        assert found.conditional == [2 / 3, 1 / 2, 1.0]
        assert found.unconditional == [2 / 4, 1 / 4, 1 / 4]
        assert found.tokens_a_step == 8 / 4

    def test_steps_without_room_and_those_of_a_repeat_are_left_out(self) -> None:
        steps = [DraftStep(1, 3, 3, 2), DraftStep(4, 3, 3, 2), DraftStep(7, 1, 1, 0)]
        told = Told(Prompt("short", (1,)), Answer([1, 2, 3, 4, 1, 2, 3, 4], steps=steps), max_tokens=8)
        assert tally_of([told], WHOLE, 3).num_steps == 2, "before the last one fewer than three drafts had room"
        assert tally_of([told], BEFORE_REPEAT, 3).num_steps == 2
        assert tally_of([Told(told.prompt, Answer([1] * 8, steps=steps), 8)], BEFORE_REPEAT, 3).num_steps == 1

    def test_steps_of_answers_say_what_the_engine_counted(self) -> None:
        core = engine_of(FakeDraftingRunner(0.6), SchedulerMode.MTP_BATCH, 3, width=4)
        answers = answer_all(core, requests(6, 24), concurrency=4, rng=random.Random(1))
        steps = [step for answer in answers for step in answer.steps]
        counts = core.counters.drafts
        assert [len(answer.token_ids) for answer in answers] == [24] * 6
        assert [1 + sum(step.num_tokens for step in answer.steps) for answer in answers] == [24] * 6
        assert sum(step.num_drafts for step in steps) == counts.num_draft_tokens
        found = tally(steps, 3)
        assert found.accepted == tuple(counts.accepted_by_position[i] for i in range(3))
        assert 0.3 < found.conditional[0] < 0.9


class TestSpeculation:
    def test_a_wrong_head_is_never_right_and_costs_no_answer(self) -> None:
        plain = answer_all(engine_of(FakeRunner(), SchedulerMode.AR_BATCH, 0, width=4), requests(4, 20), concurrency=4)
        core = engine_of(WrongHead(FakeDraftingRunner(1.0)), SchedulerMode.MTP_BATCH, 4, width=4)
        assert [one.token_ids for one in answer_all(core, requests(4, 20), concurrency=4)] == [
            one.token_ids for one in plain
        ]
        assert core.counters.drafts.num_accepted_tokens == 0 < core.counters.drafts.num_draft_tokens

    def test_a_block_counts_while_all_clients_are_there_and_leaves_nothing_behind(self) -> None:
        runner = FakeDraftingRunner(1.0)
        way = Way("depth 2", engine_of(runner, SchedulerMode.MTP_BATCH, 2, width=2), count())
        for _ in range(2):
            sample = run_block(way, requests(5, 13), width=2)
            assert sample.tokens_a_row == pytest.approx(3.0, abs=0.3), "two drafts, always right"
            assert sample.decode_tokens_per_s > 0
        assert not way.core.has_work
        assert next(way.numbers) == 8, "the fifth of each would have been alone; the others had numbers of their own"

    def test_the_best_is_that_of_the_medians_and_ratios_are_of_one_round(self) -> None:
        rates = {"ar_batch": [1.0, 1.0, 9.0], "depth 1": [2.0, 2.0, 2.0], "auto": [3.0, 2.0, 1.0]}
        samples = {name: [Sample(rate, rate, 1.0) for rate in of_way] for name, of_way in rates.items()}
        samples |= {f"depth {depth}": [Sample(1.5, 1.5, 1.0)] * 3 for depth in (2, 3, 4)}

        def rate(sample: Sample) -> float:
            return sample.tokens_per_s

        assert best_of_fixed(samples, rate) == "depth 1"
        assert pairwise_ratios(samples, "auto", "depth 1", rate) == [1.5, 1.0, 0.5]

    def test_shares_of_a_step(self) -> None:
        levels = Levels(step_s=(4.0, 5.0), first_s=(0.4, 0.5), deep_s=(1.2, 2.5))
        assert levels.first_shares == pytest.approx([0.1, 0.1])
        assert levels.further_shares == pytest.approx([0.05, 0.1])


class TestIdentity:
    def test_a_difference_is_placed_and_has_its_margin(self) -> None:
        todo = requests(2, 3)
        recorder = MarginRecorder(FakeRunner())
        recorder.margins[1, len(todo[1].prompt_ids) + 1] = 0.25
        oracle = [Kept("1 2 3", "x"), Kept("4 5 6", "y")]
        assert compare(oracle, list(oracle), todo, recorder) == {"identical": True}
        found = compare(oracle, [oracle[0], Kept("4 7 6", "z")], todo, recorder)
        assert found == {
            "identical": False,
            "differing_answers": 1,
            "first_request": 1,
            "first_token": 1,
            "logit_margin": 0.25,
        }
        only_logprobs = compare(oracle, [Kept("1 2 3", "other"), oracle[1]], todo, recorder)
        assert only_logprobs == {"identical": False, "differing_answers": 1, "first_request": 0}

    def test_an_answer_that_ends_early_differs_there(self) -> None:
        assert first_difference(["1", "2"], ["1"]) == 1
        assert first_difference(["1"], ["1", "2"]) == 1
        assert first_difference(["1"], ["1"]) is None

    def test_margins_are_those_of_the_tokens_that_came(self) -> None:
        """Also where a draft was wrong first: the step after it writes over what followed from it."""
        plain, drafting = MarginRecorder(FakeRunner()), MarginRecorder(FakeDraftingRunner(0.6))
        answer_all(engine_of(plain, SchedulerMode.SERIAL, 0, width=1), requests(3, 12), concurrency=1)
        core = engine_of(drafting, SchedulerMode.MTP_BATCH, None, width=3, costs=flat_costs())
        answer_all(core, requests(3, 12), concurrency=3)
        assert {key: drafting.margins[key] for key in plain.margins} == plain.margins
        assert len(plain.margins) == 3 * 12


def requests(number: int, max_tokens: int) -> list[Submit]:
    """Greedy ones of different prompts, that don't end before `max_tokens`."""
    params = SamplingParams(temperature=0)
    return [
        submit_of((65 + k, 66, 67 + k), params, max_tokens=max_tokens, seed=0, eos_ids=frozenset())
        for k in range(number)
    ]
