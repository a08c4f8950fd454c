"""Token ids to text as they come, in whole characters; knows nothing of stop strings or of who reads the text.

The tokenizers library has a `DecodeStream` for this. For each token it re-decodes everything since the last complete
character (so a run of stray bytes costs quadratic time), and it has no way to get the rest at the end. Hence our own.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence
from typing import Protocol

from mtplx.text.pieces import TokenPieces


class Vocabulary(Protocol):
    """What a detokenizer needs of a tokenizer."""

    @property
    def pieces(self) -> TokenPieces: ...

    @property
    def special_ids(self) -> frozenset[int]: ...


class Detokenizer:
    """The text of one sequence of tokens, however it is cut into pushes; one look-up and one UTF-8 step a token.

    Joined, what `push` and `flush` return is `tokenizer.decode` of all ids. Bytes that aren't UTF-8 become U+FFFD.
    `continues` says that the tokens go on with an earlier text, so that the first one keeps its leading space.
    `shown_ids` are in the text even where special tokens are skipped: what reads the text looks for them.

    Invariant: at most three bytes are held, the beginning of a character that later tokens may complete.
    """

    __slots__ = ("_at_start", "_held", "_hidden_ids", "_pieces")

    def __init__(
        self,
        tokenizer: Vocabulary,
        *,
        skip_special_tokens: bool = True,
        continues: bool = False,
        shown_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._pieces = tokenizer.pieces
        self._hidden_ids: frozenset[int] = tokenizer.special_ids - shown_ids if skip_special_tokens else frozenset()
        self._at_start = not continues
        self._held = b""

    @property
    def is_between_characters(self) -> bool:
        """Whether all tokens so far have all of their text out."""
        return not self._held

    def push(self, token_ids: Sequence[int]) -> str:
        """The new text that these tokens make certain; "" while a character is incomplete."""
        new = self._open(token_ids) if self._at_start else self._join(token_ids)
        data = self._held + new
        text, num_read = utf_8_decode(data, "replace", False)
        self._held = data[num_read:]
        return text

    def flush(self) -> str:
        """The rest, when no token will follow: an incomplete character as U+FFFD, else ""."""
        text, _ = utf_8_decode(self._held, "replace", True)
        self._held = b""
        return text

    def _open(self, token_ids: Sequence[int]) -> bytes:
        for index, token_id in enumerate(token_ids):
            if token_id in self._hidden_ids:
                continue
            piece = self._pieces.opening(token_id)
            if piece is not None:
                self._at_start = False
                return piece + self._join(token_ids[index + 1 :])
        return b""

    def _join(self, token_ids: Sequence[int]) -> bytes:
        pieces, hidden_ids = self._pieces, self._hidden_ids
        return b"".join([pieces[token_id] for token_id in token_ids if token_id not in hidden_ids])
