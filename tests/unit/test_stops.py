"""Stop strings against an oracle that looks at the whole text, one character at a time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mtplx.text.stops import StopMatcher, StopResult

LETTERS = "aabé\N{HUGGING FACE}"  # few, so that strings overlap; one outside the basic plane
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=6), max_size=4)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The text that was sent, the stop string, and after how many characters of input it was known."""

    sent: str
    stop: str | None
    num_read: int


def oracle(stops: list[str], text: str, num_inactive: int) -> Outcome:
    """The first prefix of `text` that ends in a stop string decides; the longest of those that end there is cut off."""
    for end in range(num_inactive + 1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return Outcome(text[: end - len(stop)], stop, end)
    return Outcome(text, None, len(text))


def could_begin_a_stop(stops: list[str], text: str) -> int:
    """The length of the longest suffix of `text` with which some stop string begins, the whole string not counted."""
    lengths = (n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n]))
    return max(lengths, default=0)


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    bounds = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    return [text[a:b] for a, b in pairwise(bounds)]


@settings(deadline=None)
@given(stops=STOPS, text=st.text(LETTERS, max_size=40), cuts=st.lists(st.integers(0, 40)), inactive=st.integers(0, 12))
@example(stops=["ab", "b"], text="ab", cuts=[1], inactive=0)
@example(stops=["aab"], text="aaab", cuts=[1, 2, 3], inactive=0)
@example(stops=["abab"], text="ababab", cuts=[], inactive=4)
def test_every_cut_gives_the_oracles_result(stops: list[str], text: str, cuts: list[int], inactive: int) -> None:
    expected = oracle(stops, text, inactive)
    matcher = StopMatcher(stops)
    sent, read, stop = "", "", None
    for piece in pieces_of(text, [*cuts, inactive]):
        result = matcher.push(piece, active=len(read) >= inactive)
        read += piece
        sent += result.text
        if result.is_stopped:
            stop = result.stop
            break
        held = could_begin_a_stop(stops, read)
        assert sent == read[: len(read) - held], "exactly what could begin a stop string is held back"
    assert sent + matcher.flush() == expected.sent
    assert stop == expected.stop
    assert matcher.flush() == ""


@settings(deadline=None)
@given(stops=STOPS, text=st.text(LETTERS, max_size=40))
def test_the_end_is_seen_at_the_very_character(stops: list[str], text: str) -> None:
    expected = oracle(stops, text, 0)
    matcher = StopMatcher(stops)
    num_read = next((i for i, char in enumerate(text, 1) if matcher.push(char).is_stopped), len(text))
    assert num_read == expected.num_read


def test_a_stop_string_in_three_deltas_is_never_sent() -> None:
    matcher = StopMatcher(["END"])
    assert [matcher.push(piece) for piece in ("the ", "E", "N")] == [
        StopResult("the "),
        StopResult(""),
        StopResult(""),
    ]
    assert matcher.push("D, more") == StopResult("", "END")


def test_held_text_is_sent_when_the_match_fails() -> None:
    matcher = StopMatcher(["END"])
    assert [matcher.push(piece).text for piece in ("EN", "E", "x")] == ["", "EN", "Ex"]


def test_held_text_is_flushed_at_the_end_once() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("the EN").text == "the "
    assert matcher.flush() == "EN"
    assert matcher.flush() == ""


def test_a_failed_long_match_still_finds_the_short_one_inside_it() -> None:
    matcher = StopMatcher(["abcd", "bx"])
    assert matcher.push("ab") == StopResult("")
    assert matcher.push("x") == StopResult("a", "bx")


def test_of_two_strings_complete_at_one_character_the_longer_is_cut_whatever_their_order() -> None:
    for stops in (["ab", "b"], ["b", "ab"]):
        assert StopMatcher(stops).push("xabb") == StopResult("x", "ab")


def test_a_string_complete_while_inactive_does_not_count() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("a END b", active=False) == StopResult("a END b")
    assert matcher.push(" END") == StopResult(" ", "END")


def test_a_string_begun_while_inactive_counts_when_complete_later() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("a EN", active=False) == StopResult("a ")
    assert matcher.push("D") == StopResult("", "END")


def test_without_stop_strings_the_text_passes_through() -> None:
    matcher = StopMatcher([])
    assert matcher.push("anything") == StopResult("anything")
    assert matcher.flush() == ""


def test_nothing_may_follow_a_stop_string() -> None:
    matcher = StopMatcher(["b"])
    matcher.push("ab")
    with pytest.raises(AssertionError):
        matcher.push("c")


class CountingText(str):
    """A text that counts how often its characters are looked at."""

    num_reads = 0

    def __getitem__(self, key: object) -> str:
        self.num_reads += isinstance(key, int)
        return super().__getitem__(key)  # type: ignore[index]


@pytest.mark.parametrize("stop", ["a" * 600 + "b", "ab" * 300 + "b", "a" * 1_000_000], ids=["a*b", "(ab)*b", "huge"])
def test_hostile_stop_strings_cost_linear_time(stop: str) -> None:
    """Each character of the text is looked at twice at most on average, and of a huge string only what has matched."""
    matcher = StopMatcher([stop])
    text = CountingText(("a" * 499 + "ab") * 20)
    sent = matcher.push(text).text + matcher.flush()
    assert sent == text
    assert 0 < text.num_reads <= 2 * len(text)
    assert len(matcher._patterns[0]._borders) <= len(text) + 2
