"""Tries a client's grammar in a process of its own, so that one that would hang or crash a compiler harms nobody.

llguidance bounds most of its work, but not all: some intersections of expressions compile for ever, and a long chain of
rules overflows the stack, which would end the server. So a grammar is translated, compiled and walked a few steps in a
child with little time, memory and stack, over bytes for tokens, before the server compiles it over its own. The child
runs this file by its path and imports nothing of the package.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits

CPU_S = 2
MAX_STEP_CPU_S = 0.05  # everyone's tokens wait for that
WALL_S = 60.0  # a backstop, long: a busy machine gives a process its seconds late
MEMORY_BYTES = 1 << 30
STACK_BYTES = 4 << 20  # half of what the server's own threads have
MAX_MESSAGE_CHARACTERS = 300
NO_TEXT = "no text matches it"

_MAX_ROW_ITEMS = 10_000  # some 2,500 optional properties of one object
_NUM_STEPS = 48

# llguidance takes it with a rule, for callers that obey it.
_TEMPERATURE = re.compile(r"^\s*\w+\s*\[[^\]]*\btemperature\s*=", re.MULTILINE)

# Between JSON's tokens: enough to indent, and an end to a model that would write nothing else.
_WHITESPACE = r"[\x20\x0A\x0D\x09]{1,64}"


@dataclass(frozen=True, slots=True)
class Question:
    """A grammar as `Grammar` has it; it may name special tokens, and ids below `vocab_size`."""

    kind: str
    source: str
    special_tokens: Sequence[str]
    vocab_size: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """The grammar in llguidance's words, or one sentence that says why it can't be used.

    What was refused for its cost alone isn't certain: a machine may have been busy.
    """

    grammar: str = ""
    refusal: str | None = None
    is_certain: bool = True


def try_out(question: Question) -> Verdict:
    """Asks a child, which takes a tenth of a second where nobody else wants the processor.

    Raises:
        subprocess.TimeoutExpired: it said nothing for `WALL_S` seconds.
        RuntimeError: it couldn't do its work, whatever the grammar.
    """
    asked = json.dumps(asdict(question)).encode()
    child = subprocess.run([sys.executable, "-P", __file__], input=asked, capture_output=True, timeout=WALL_S)
    if child.returncode == 0:
        return Verdict(**json.loads(child.stdout))
    if child.returncode < 0 or b"MemoryError" in child.stderr:  # ended by a limit or by a stack that overflowed
        why = f"it takes more than {CPU_S} seconds or too much memory to compile, or is nested too deeply"
        return Verdict(refusal=why, is_certain=False)
    raise RuntimeError(f"a grammar can't be tried out: {child.stderr.decode(errors='replace')}")


def parser_limits() -> LLParserLimits:
    """What a grammar may cost to compile and in each step, where llguidance counts."""
    from llguidance import LLParserLimits

    return LLParserLimits(max_items_in_row=_MAX_ROW_ITEMS, verbose_errors=False)


def one_line(error: str) -> str:
    """llguidance's message without its picture of the grammar."""
    text = " ".join(error.removesuffix("<non-verbose/>").split())
    if text.startswith("NoExtension"):
        return NO_TEXT
    return text if len(text) <= MAX_MESSAGE_CHARACTERS else text[:MAX_MESSAGE_CHARACTERS] + " ..."


class _Bytes:
    """A vocabulary of all bytes, an end and some special tokens, padded to a number of ids."""

    def __init__(self, special_tokens: Sequence[str], vocab_size: int) -> None:
        named = [bytes([byte]) for byte in range(256)] + [b"<eos>"] + [token.encode() for token in special_tokens]
        self.tokens = named + [b""] * (vocab_size - len(named))
        self.eos_token_id = 256
        self.bos_token_id = None
        self.special_token_ids = list(range(256, len(named)))

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def _judge(question: Question) -> Verdict:
    from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

    try:
        grammar = _for_llguidance(question.kind, question.source)
    except Exception as error:  # the converters raise nothing narrower
        return Verdict(refusal=one_line(str(error)))
    vocabulary = TokenizerWrapper(_Bytes(question.special_tokens, question.vocab_size))
    matcher = LLMatcher(LLTokenizer(vocabulary), grammar, log_level=0, limits=parser_limits())
    slowest_s = _walk(matcher)
    if matcher.is_error():
        return Verdict(refusal=one_line(matcher.get_error()))
    if slowest_s > MAX_STEP_CPU_S:
        return Verdict(refusal="each of its tokens would take too long", is_certain=False)
    return Verdict(grammar)


def _for_llguidance(kind: str, source: str) -> str:
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import any_to_lark

    if kind == "lark" and _TEMPERATURE.search(source):
        raise ValueError("the temperature can't be set inside a grammar")
    if kind == "json_schema":
        return LLMatcher.grammar_from_json_schema(source, defaults={"whitespace_pattern": _WHITESPACE})
    if kind == "regex":
        return LLMatcher.grammar_from_regex(source)
    return LLMatcher.grammar_from_lark(any_to_lark(source))


def _walk(matcher: LLMatcher) -> float:
    """Takes some first bytes of some text, since what is too complex shows soon; the seconds of the slowest."""
    luck, slowest_s = random.Random(0), 0.0
    for _ in range(_NUM_STEPS):
        if matcher.is_error():
            break
        start_s = time.thread_time()
        mask = matcher.compute_bitmask()
        slowest_s = max(slowest_s, time.thread_time() - start_s)
        allowed = [byte for byte in range(256) if mask[byte // 8] >> byte % 8 & 1]
        if not allowed:
            break
        matcher.consume_token(luck.choice(allowed))
    return slowest_s


def _limit_this_process() -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):  # not all systems have all limits
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def _main() -> None:
    _limit_this_process()
    verdicts: list[Verdict] = []
    asked: dict[str, Any] = json.load(sys.stdin)
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=lambda: verdicts.append(_judge(Question(**asked))))
    thread.start()
    thread.join()
    print(json.dumps(asdict(verdicts[0])))


if __name__ == "__main__":
    _main()
