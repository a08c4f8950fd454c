"""From a request's grammar to a matcher of the served model's tokens: compiled once, within limits, and kept.

Compiling is llguidance's. It blocks, so it belongs in a thread that neither the event loop nor the engine waits for.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING

from mtplx.errors import OverloadedError, RequestError
from mtplx.sampling_params import Grammar
from mtplx.text.grammar_trial import NO_TEXT, Question, Verdict, one_line, parser_limits, try_out
from mtplx.text.kept_schemas import UnkeptSchemaError, kept_grammar
from mtplx.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_KEPT = 64  # grammars, and refusals that would be the same again


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A grammar over one model's tokens. Never changed, so that requests and threads may share it."""

    _prototype: LLMatcher

    def start(self) -> LLMatcher:
        """A matcher at the beginning, which shares nothing that changes with any other."""
        return self._prototype.deep_copy()


class GrammarCompiler:
    """Compiles for one model. Callable from any thread; `vocab_size` is the model's, which may be over the tokenizer's.

    The first call makes llguidance's view of the tokenizer, so that a server without such requests doesn't pay for it.
    """

    def __init__(self, tokenizer: Tokenizer, *, vocab_size: int, eos_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_ids = frozenset(token_id for token_id in eos_ids if token_id < vocab_size)
        self._lock = threading.Lock()
        self._tokens_lock = threading.Lock()  # held for long, once
        self._ll_tokenizer: LLTokenizer | None = None
        self._kept: OrderedDict[Grammar, CompiledGrammar | str] = OrderedDict()  # the least lately asked for first

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Returns the grammar over this model's tokens.

        Raises:
            RequestError: it is wrong, unsatisfiable or too complex, or the model can't be held to any; `param` is the
                grammar's.
            OverloadedError: nothing came of it in a minute; it wasn't refused.
        """
        kept = self.kept(grammar)
        if kept is not None:
            return kept
        verdict = self._tried(grammar)
        found = verdict.refusal or self._over_tokens(verdict.grammar)
        if verdict.is_certain:
            with self._lock:
                self._kept[grammar] = found
                if len(self._kept) > MAX_KEPT:
                    self._kept.popitem(last=False)
        return _told(grammar, found)

    def kept(self, grammar: Grammar) -> CompiledGrammar | None:
        """The same without work, for grammars that were asked for lately; None for others. Raises: RequestError."""
        with self._lock:
            if grammar not in self._kept:
                return None
            self._kept.move_to_end(grammar)
            found = self._kept[grammar]
        return _told(grammar, found)

    def _tried(self, grammar: Grammar) -> Verdict:
        if not self._eos_ids:
            return Verdict(
                refusal="this model has no end-of-sequence token, so no answer could end where a grammar does"
            )
        try:
            source = kept_grammar(grammar.kind, grammar.source)
            return try_out(Question(grammar.kind, source, self._special_tokens(), self._vocab_size))
        except UnkeptSchemaError as error:
            return Verdict(refusal=str(error))
        except TimeoutExpired as error:
            raise OverloadedError("this machine is too busy to compile a grammar; try again later") from error

    def _over_tokens(self, source: str) -> CompiledGrammar | str:
        """The compiled grammar, or why there is none."""
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokens(), source, log_level=0, limits=parser_limits())
        begins_somehow = not matcher.is_error() and any(matcher.compute_bitmask())
        why = one_line(matcher.get_error())
        if why == NO_TEXT or not (why or begins_somehow):
            return "no token of this model could begin such a text"
        return why or CompiledGrammar(matcher)

    def _tokens(self) -> LLTokenizer:
        from llguidance import LLTokenizer, TokenizerWrapper

        with self._tokens_lock:
            if self._ll_tokenizer is None:
                vocabulary = _Vocabulary(self._tokenizer, self._vocab_size, self._eos_ids)
                self._ll_tokenizer = LLTokenizer(TokenizerWrapper(vocabulary), eos_token=sorted(self._eos_ids))
            return self._ll_tokenizer

    def _special_tokens(self) -> list[str]:
        return [self._tokenizer.token_text(token_id) for token_id in sorted(self._tokenizer.special_ids)]


class _Vocabulary:
    """The tokenizer in the shape that llguidance asks for. An end-of-sequence token is never text."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = min(eos_ids)
        self.bos_token_id = tokenizer.bos_id
        self.tokens: Sequence[bytes] = [tokenizer.token_bytes(token_id) for token_id in range(vocab_size)]
        self.special_token_ids = sorted(i for i in tokenizer.special_ids | eos_ids if i < vocab_size)

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def _told(grammar: Grammar, found: CompiledGrammar | str) -> CompiledGrammar:
    if isinstance(found, str):
        raise RequestError(f"{grammar.param}: {found}", grammar.param)
    return found
