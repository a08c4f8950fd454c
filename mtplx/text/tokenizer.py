"""Text to token ids and back, from a model folder's tokenizer.json and tokenizer_config.json.

Uses the `tokenizers` library alone: importing transformers here would cost half a second at every start.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.processors import TemplateProcessing

from mtplx.errors import ModelError, RequestError
from mtplx.text.detokenizer import Detokenizer
from mtplx.text.pieces import TokenPieces

TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_TOKEN_LISTS = ("additional_special_tokens", "extra_special_tokens")


class Tokenizer:
    """One model's vocabulary. Immutable after `load`, so that threads may share it."""

    def __init__(self, backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
        """Takes `backend` over: its special tokens and its way of adding bos and eos become those of `config`."""
        named = named_tokens(config)
        _mark_special(backend, [*named.values(), *_listed_tokens(config)])
        _apply_bos_eos_flags(backend, config, named)
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.pieces = TokenPieces(backend)
        self.special_ids = frozenset(
            token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special
        )
        self.bos_token = named.get("bos_token")
        self.eos_token = named.get("eos_token")
        vocab = backend.get_vocab(with_added_tokens=True)
        self.vocab_size: int = 1 + max(vocab.values(), default=-1)
        # In characters; of a byte-level vocabulary each byte is one.
        self.longest_token: int = max(map(len, vocab), default=0)

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Reads the tokenizer of a model folder.

        Raises:
            ModelError: tokenizer.json is missing or can't be read, or its decoder isn't supported.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelError(f"{folder} has no tokenizer.json")
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise ModelError(f"{path} can't be read as a tokenizer: {error}") from error
        return cls(backend, read_tokenizer_config(folder))

    @property
    def bos_id(self) -> int | None:
        return None if self.bos_token is None else self.token_id(self.bos_token)

    @property
    def eos_id(self) -> int | None:
        return None if self.eos_token is None else self.token_id(self.eos_token)

    def encode(self, text: str, *, add_special_tokens: bool, param: str = "prompt") -> list[int]:
        """The token ids of `text`; special tokens spelled in it become their ids.

        `add_special_tokens` adds what the model's own tokenizer adds around a text, such as a bos token. Releases the
        GIL while it works, so that a long text can be encoded in a thread beside a running event loop.

        Raises:
            RequestError: the text isn't valid Unicode, or the vocabulary can't spell it; `param` names its field.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the text is not valid Unicode: half of a surrogate pair at character {error.start}", param
            ) from error
        # encode() would hold the GIL, and computes offsets that nobody reads.
        try:
            (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        except Exception as error:  # the library raises nothing narrower
            raise RequestError("the model's vocabulary can't spell this text", param) from error
        return list(encoding.ids)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of all these tokens; ids that the vocabulary lacks are left out.

        Equal to the tokenizers library, with one exception: where byte-fallback tokens hold an invalid sequence, only
        that sequence becomes U+FFFD, not the valid characters next to it too. (Otherwise no character written in such
        bytes could be sent before the run of bytes ends.)
        """
        detokenizer = Detokenizer(self, skip_special_tokens=skip_special_tokens)
        return detokenizer.push(token_ids) + detokenizer.flush()

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that this token adds inside a text; b"" for an id that the vocabulary lacks."""
        return self.pieces[token_id]

    def token_text(self, token_id: int) -> str:
        """The same as text: with its leading space, special tokens spelled out, an incomplete character as U+FFFD."""
        return self.pieces[token_id].decode(errors="replace")

    def token(self, token_id: int) -> str:
        """The token as the vocabulary spells it, "" for an id that it lacks."""
        token: str | None = self._backend.id_to_token(token_id)
        return token or ""

    def token_ids(self, tokens: Iterable[str]) -> frozenset[int]:
        """The ids of those of the tokens that the vocabulary has."""
        return frozenset(token_id for token in tokens if (token_id := self.token_id(token)) is not None)

    def special_tokens_among(self, tokens: Iterable[str]) -> dict[str, int]:
        """Those of the tokens that are special, with their ids: no text is spelled with these."""
        ids = {token: self.token_id(token) for token in sorted(tokens)}
        return {token: token_id for token, token_id in ids.items() if token_id in self.special_ids}

    def token_id(self, token: str) -> int | None:
        """The id of a token as the vocabulary spells it, None if there is none."""
        return self._backend.token_to_id(token)


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """The object in tokenizer_config.json, or {} where there is no such file.

    Raises:
        ModelError: the file is there and isn't a JSON object.
    """
    path = folder / "tokenizer_config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} can't be read: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path} doesn't hold a JSON object")
    return config


def named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The tokens that tokenizer_config.json gives a role, such as {"bos_token": "<s>"}; unset ones are left out."""
    spelled = {name: _spelling(config.get(name)) for name in TOKEN_NAMES}
    return {name: token for name, token in spelled.items() if token is not None}


def _listed_tokens(config: Mapping[str, Any]) -> Iterator[str]:
    for key in _TOKEN_LISTS:
        listed = config.get(key)
        entries = listed.values() if isinstance(listed, Mapping) else listed
        if isinstance(entries, Iterable) and not isinstance(entries, str):
            yield from (token for token in map(_spelling, entries) if token is not None)


def _spelling(entry: object) -> str | None:
    """A token's text; configs write it as a string or as an object with its content."""
    text = entry.get("content") if isinstance(entry, Mapping) else entry
    return text if isinstance(text, str) and text else None


def _mark_special(backend: tokenizers.Tokenizer, tokens: Sequence[str]) -> None:
    """Makes these tokens special, as far as the vocabulary has them: an id that the model lacks must not arise."""
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    new = [token for token in tokens if token not in special and backend.token_to_id(token) is not None]
    backend.add_special_tokens(new)


def _apply_bos_eos_flags(backend: tokenizers.Tokenizer, config: Mapping[str, Any], named: Mapping[str, str]) -> None:
    """Obeys add_bos_token and add_eos_token where the config has either, as transformers does.

    Some models (DeepSeek-V3) say so only there; tokenizer.json's own post-processor is replaced then.
    """
    if "add_bos_token" not in config and "add_eos_token" not in config:
        return
    ids = {
        name: (token, backend.token_to_id(token))
        for name, token in named.items()
        if config.get(f"add_{name}") and backend.token_to_id(token) is not None
    }
    bos, eos = ([ids[name]] if name in ids else [] for name in ("bos_token", "eos_token"))
    backend.post_processor = TemplateProcessing(
        single=[*(token for token, _ in bos), "$A", *(token for token, _ in eos)],
        special_tokens=[*bos, *eos],
    )
