"""From words that an answer must not have to the runs of tokens that spell them."""

from __future__ import annotations

from collections.abc import Iterable

from mtplx.text.tokenizer import Tokenizer


def spellings(tokenizer: Tokenizer, words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
    """The token ids of each word as a text may begin with it, and as it goes on with it, behind a space.

    Source: vLLM's `bad_words`, which asks for the second only where it is as long as the first and begins otherwise.
    That a word can be spelled by other tokens too is the limit of this way to ban it.

    Raises:
        RequestError: the vocabulary can't spell a word.
    """
    runs: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip()
        first, behind_space = (
            tuple(tokenizer.encode(text, add_special_tokens=False, param="bad_words")) for text in (bare, f" {bare}")
        )
        runs[first] = None
        if len(behind_space) == len(first) and behind_space[:1] != first[:1]:
            runs[behind_space] = None
    return tuple(run for run in runs if run)
