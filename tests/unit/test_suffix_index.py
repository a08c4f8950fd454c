"""The index finds what a plain search finds, forgets what its size says, and proposes nothing that it doesn't hold."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtplx.batching.state import Likely
from mtplx.batching.suffix_index import LEAST_MATCH, MAX_MATCH, Run, SuffixIndex

Texts = list[list[int]]


def index_of(*texts: Sequence[int], capacity: int = 64) -> SuffixIndex:
    index = SuffixIndex(capacity)
    for text in texts:
        index.append(0, text)
    return index


def test_what_came_after_the_same_tokens_is_proposed() -> None:
    index = index_of([1, 2, 3, 4, 5, 6])
    assert index.find([9, 1, 2, 3], 8) == Run((4, 5, 6), 3)
    assert index.find([2, 3], 8) == Run((4, 5, 6), 2)
    assert index.find([1, 2, 3, 4], 2) == Run((5, 6), 4)
    assert index.find([1, 2, 3], 1) == Run((4,), 3)


@pytest.mark.parametrize("tail", [[], [3], [9, 3], [2, 9], [4, 5, 6]])
def test_without_a_match_of_two_or_anything_behind_it_there_is_no_run(tail: list[int]) -> None:
    assert index_of([1, 2, 3, 4, 5, 6]).find(tail, 8) is None


def test_no_room_for_drafts_is_no_run() -> None:
    assert index_of([1, 2, 3, 4]).find([1, 2, 3], 0) is None


def test_the_longest_match_wins_and_among_equals_the_newest() -> None:
    index = index_of([7, 1, 2, 3, 40], [8, 1, 2, 3, 50], [1, 2, 3, 60])
    assert index.find([7, 1, 2, 3], 4) == Run((40,), 4)
    assert index.find([8, 1, 2, 3], 4) == Run((50,), 4)
    assert index.find([9, 1, 2, 3], 4) == Run((60,), 3)


def test_a_match_ends_where_its_text_begins() -> None:
    index = index_of([7, 7, 7], [1, 2, 3, 4])
    assert index.find([7, 7, 1], 4) is None, "the first text's end isn't before the second one's beginning"
    assert index.find([7, 1, 2, 3], 4) == Run((4,), 3)


def test_texts_grow_in_turns_and_stay_apart() -> None:
    index = SuffixIndex(64)
    ends = [0, 0]
    for one, other in zip([1, 2, 3, 4, 5], [1, 2, 3, 8, 9], strict=True):
        ends = [index.append(ends[0], [one]), index.append(ends[1], [other])]
    assert index.find([2, 3, 4], 8) == Run((5,), 3)
    assert index.find([2, 3, 8], 8) == Run((9,), 3)
    index.append(ends[0], [6, 7])
    assert index.find([3, 4, 5], 8) == Run((6, 7), 3)
    index.check()


def test_texts_branch_from_a_common_beginning() -> None:
    index = SuffixIndex(64)
    root = index.append(0, [1, 2, 3])
    for branch in ([4, 5, 6], [7, 8, 9]):
        index.append(root, branch)
    assert index.find([1, 2, 3], 8) == Run((7, 8, 9), 3), "the newer branch"
    assert index.find([1, 2, 3, 4, 5], 8) == Run((6,), 5), "the match goes back into the beginning"
    index.check()


def test_ones_own_end_is_no_match_but_ones_own_past_is() -> None:
    index = index_of([1, 2, 3, 4, 1, 2, 3])
    assert index.find([1, 2, 3], 8) == Run((4, 1, 2, 3), 3)


def test_it_forgets_the_oldest_and_its_memory_ends_at_its_size() -> None:
    index = SuffixIndex(32)
    end = index.append(0, [1, 2, 3, 4])
    assert index.find([1, 2, 3], 4) == Run((4,), 3)
    sizes = []
    for token_id in range(100, 200):
        end = index.append(end, [token_id])
        index.check()
        sizes.append(index.num_bytes)
    assert index.find([1, 2, 3], 4) is None
    assert index.oldest == index.end - 32
    assert index.find([166, 167, 168], 2) is None, "the last of these is the oldest that is remembered"
    assert index.find([167, 168, 169], 2) == Run((170, 171), 2)
    assert max(sizes) == sizes[-1] == 100 * 32


def test_a_text_that_was_forgotten_goes_on_without_its_beginning() -> None:
    index = SuffixIndex(16)
    old = index.append(0, [1, 2, 3])
    index.append(0, range(100, 120))
    index.append(old, [4, 5, 6, 7])
    index.check()
    assert index.find([3, 4], 4) is None
    assert index.find([3, 4, 5], 4) == Run((6, 7), 2)


def likely(*ids: int) -> Likely:
    return (*ids, *range(90, 98 - len(ids))), tuple(-float(place) for place in range(8))


def test_a_run_may_take_another_way_and_goes_on_with_what_followed_that() -> None:
    index = SuffixIndex(64)
    index.append(0, [1, 2, 3, 4, 5], [None, None, likely(3, 8)])
    index.append(0, [6, 2, 8, 9, 10])
    tail = [1, 2]
    assert index.find(tail, 8) == Run((3, 4, 5), 2)
    assert index.find(tail, 8, lambda offset, found: found[0][0]) == Run((3, 4, 5), 2)
    assert index.find(tail, 8, lambda offset, found: found[0][1]) == Run((8, 9, 10), 2)
    assert index.find(tail, 8, lambda offset, found: 50) == Run((50,), 2), "nothing followed that"
    assert index.find(tail, 1, lambda offset, found: found[0][1]) == Run((8,), 2)
    index.check()


def test_what_was_likely_is_forgotten_with_its_token() -> None:
    index = SuffixIndex(8)
    index.append(0, [1, 2, 3, 4], [likely(1), likely(2), likely(3, 7), likely(4)])
    index.append(0, [1, 2, 3, 4, 1, 2, 3, 4])
    index.check()
    assert index.find([1, 2], 2, lambda offset, found: 7) == Run((3, 4), 2)


def plain_search(texts: Texts, tail: Sequence[int], max_tokens: int) -> set[tuple[int, tuple[int, ...]]]:
    """Every match of at least two tokens that something follows: its length, and what follows."""
    found = set()
    for text in texts:
        for end in range(1, len(text)):
            length = 0
            while length < min(len(tail), end) and text[end - 1 - length] == tail[-1 - length]:
                length += 1
            if length >= LEAST_MATCH:
                found.add((length, tuple(text[end : end + max_tokens])))
    return found


@settings(max_examples=300, deadline=None)
@given(
    texts=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=20), min_size=1, max_size=6),
    tail=st.lists(st.integers(0, 3), max_size=MAX_MATCH),
    max_tokens=st.integers(1, 8),
    data=st.data(),
)
def test_what_is_proposed_is_what_a_plain_search_finds(
    texts: Texts, tail: list[int], max_tokens: int, data: st.DataObject
) -> None:
    """Texts come piece by piece in any order, into an index that holds all of them."""
    index, ends, written = SuffixIndex(128), [0] * len(texts), [0] * len(texts)
    while open_texts := [number for number, text in enumerate(texts) if written[number] < len(text)]:
        number = data.draw(st.sampled_from(open_texts))
        size = data.draw(st.integers(1, 5))
        piece = texts[number][written[number] : written[number] + size]
        ends[number] = index.append(ends[number], piece)
        written[number] += len(piece)
    index.check()
    expected = plain_search(texts, tail, max_tokens)
    run = index.find(tail, max_tokens)
    assert (run is None) == (not expected)
    assert run is None or (run.match_len, run.token_ids) in expected


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), capacity=st.sampled_from([4, 16, 64]))
def test_however_much_it_is_told_it_proposes_only_what_the_last_tokens_say(seed: int, capacity: int) -> None:
    rng = random.Random(seed)
    index, said, end = SuffixIndex(capacity), [], 0
    for _ in range(40):
        piece = [rng.randrange(4) for _ in range(rng.randint(1, 12))]
        end = index.append(end, piece)
        said += piece
        index.check()
        assert index.num_bytes <= 100 * capacity
        tail = said[-MAX_MATCH:] if rng.random() < 0.5 else [rng.randrange(4) for _ in range(5)]
        run = index.find(tail, 8)
        if run is not None:
            expected = plain_search([said[-capacity:]], tail, 8)
            assert (run.match_len, run.token_ids) in expected


def test_a_search_looks_at_a_bounded_number_of_places() -> None:
    """A thousand places with the same three tokens: those looked at are counted, not timed."""
    index = index_of(*([number, 1, 2, 3, 4] for number in range(10, 1010)), capacity=8192)
    looked_at = []
    match = index._match
    index._match = lambda *given: looked_at.append(given) or match(*given)  # type: ignore[func-returns-value,method-assign]
    assert index.find([5, 1, 2, 3], 4) == Run((4,), 3)
    assert len(looked_at) == 8
