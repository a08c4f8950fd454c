"""A grammar inside the next-token function: what it bans at each position, and where it lets an answer end."""

from __future__ import annotations

import numpy as np
import pytest

from mtplx.batching.state import DraftRequest, Row, StepPlan
from mtplx.decode.drafter import DraftChooser
from mtplx.decode.matcher import Matcher
from mtplx.decode.next_token import Logits
from mtplx.decode.sampler import Sampler
from mtplx.errors import GenerationError
from mtplx.sampling_params import Grammar, SamplingParams
from mtplx.text.grammar import CompiledGrammar, GrammarCompiler
from tests.fakes import EOS, VOCAB_SIZE, load_byte_tokenizer

X, Y, Z = b"xyz"
STOPS = frozenset({EOS})


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> GrammarCompiler:
    tokenizer = load_byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    return GrammarCompiler(tokenizer, vocab_size=VOCAB_SIZE, eos_ids=STOPS)


def likes(*token_ids: int) -> Logits:
    """Logits that fall from the first of these ids to the last, and from there to all others."""
    logits_V = np.zeros(VOCAB_SIZE, dtype=np.float32)
    logits_V[list(token_ids)] = np.arange(len(token_ids), 0, -1)
    return logits_V


def greedy(**params: object) -> SamplingParams:
    return SamplingParams(temperature=0.0, **params)  # type: ignore[arg-type]


def sampler_of(compiler: GrammarCompiler, regex: str, stop_ids: frozenset[int] = STOPS, **params: object) -> Sampler:
    grammar = Grammar("regex", regex)
    sampler = Sampler(VOCAB_SIZE)
    sampler.add(
        0,
        greedy(grammar=grammar, **params),
        seed=1,
        choice=0,
        prompt_ids=[7],
        stop_ids=stop_ids,
        grammar=compiler.compile(grammar),
    )
    return sampler


def emit(sampler: Sampler, position: int, *lines: Logits, drafts: tuple[int, ...] = ()) -> tuple[int, ...]:
    """The tokens of one row of sequence 0 from that position on; an error is raised as such."""
    row = Row(0, position - 1, (7, *drafts), (0,), num_logits=1 + len(drafts), num_drafts=len(drafts))
    (sampled,) = sampler.decode(StepPlan((row,)), np.array(lines))
    if sampled.outcome.error:
        raise GenerationError(sampled.outcome.error)
    return sampled.outcome.token_ids


def allowed(compiled: CompiledGrammar, text: bytes = b"", *, may_end: bool = True) -> set[int]:
    matcher = Matcher.of(compiled)
    for byte in text:
        matcher.append(byte)
    return set(np.flatnonzero(~matcher.bans(VOCAB_SIZE, np.array([EOS]), may_end=may_end)).tolist())


def test_only_what_the_grammar_allows_can_come(compiler: GrammarCompiler) -> None:
    compiled = compiler.compile(Grammar("regex", "x?y"))
    assert allowed(compiled) == {X, Y}
    assert allowed(compiled, b"x") == {Y}
    assert allowed(compiled, b"xy") == {EOS}


def test_the_end_can_come_only_where_the_grammar_accepts(compiler: GrammarCompiler) -> None:
    compiled = compiler.compile(Grammar("regex", "xy*"))
    assert allowed(compiled) == {X}
    assert allowed(compiled, b"x") == {Y, EOS}
    assert allowed(compiled, b"x", may_end=False) == {Y}
    assert allowed(compiler.compile(Grammar("regex", "x")), b"x", may_end=False) == {EOS}, "nothing else is left"


def test_a_token_that_does_not_fit_fails_at_the_next_position(compiler: GrammarCompiler) -> None:
    with pytest.raises(GenerationError, match="too complex"):
        allowed(compiler.compile(Grammar("regex", "xy")), b"z")


def test_guesses_leave_the_original_where_it_was(compiler: GrammarCompiler) -> None:
    matcher = Matcher.of(compiler.compile(Grammar("regex", "xy")))
    guess = matcher.copy()
    guess.append(X)
    assert not guess.bans(VOCAB_SIZE, np.array([EOS]), may_end=True)[Y]
    assert not matcher.bans(VOCAB_SIZE, np.array([EOS]), may_end=True)[X]


def test_the_function_draws_the_likeliest_that_is_allowed(compiler: GrammarCompiler) -> None:
    sampler = sampler_of(compiler, "[xy]+")
    assert emit(sampler, 1, likes(Z, EOS, Y, X)) == (Y,)
    assert emit(sampler, 2, likes(Z, EOS, Y, X)) == (EOS,)


def test_the_grammar_holds_at_each_position_of_a_block(compiler: GrammarCompiler) -> None:
    wish = likes(Z, Y, X)
    assert emit(sampler_of(compiler, "xyxz"), 1, wish, wish, wish, wish, drafts=(X, Y, X)) == (X, Y, X, Z)
    assert emit(sampler_of(compiler, "xyxz"), 1, wish, wish, wish, wish, drafts=(X, Y, Z)) == (X, Y, X)


def test_a_stop_id_of_the_request_can_end_it_where_an_eos_could(compiler: GrammarCompiler) -> None:
    sampler = sampler_of(compiler, "x", stop_ids=STOPS | {Z})
    assert emit(sampler, 1, likes(Z, X)) == (X,)
    assert emit(sampler, 2, likes(Z, EOS)) == (Z,)


def test_min_tokens_holds_while_the_grammar_can_go_on(compiler: GrammarCompiler) -> None:
    sampler = sampler_of(compiler, "xy?", min_tokens=5)
    assert emit(sampler, 1, likes(EOS, X)) == (X,)
    assert emit(sampler, 2, likes(EOS, Y)) == (Y,)
    assert emit(sampler, 3, likes(X, EOS)) == (EOS,)


def test_a_vocabulary_that_cannot_spell_the_text_fails_there(compiler: GrammarCompiler) -> None:
    sampler = sampler_of(compiler, "xy")
    logits_V = np.full(VOCAB_SIZE, -np.inf, dtype=np.float32)
    logits_V[X] = 0.0
    assert emit(sampler, 1, logits_V) == (X,)
    with pytest.raises(GenerationError, match="no token that could come next"):
        emit(sampler, 2, logits_V)


def test_guesses_are_drawn_under_the_grammar_too(compiler: GrammarCompiler) -> None:
    sampler = sampler_of(compiler, "xyz")
    choose = DraftChooser(sampler, [DraftRequest(0, 1, (7,), (0,), depth=4)], VOCAB_SIZE)
    some_ids = np.array([Y, Z])  # a head that knows no x
    wish = likes(Z, Y, X)
    assert choose([0], np.array([wish])) == [X]
    assert choose([0], np.array([wish[some_ids]]), some_ids) == [Y]
    assert choose([0], np.array([wish])) == [Z]
    assert choose([0], np.array([wish])) == [None], "the end comes without a guess"
    assert emit(sampler, 1, wish) == (X,), "guessing has changed nothing"


def test_a_row_under_a_grammar_leaves_its_neighbours_alone(compiler: GrammarCompiler) -> None:
    sampler = sampler_of(compiler, "[xy]+")
    sampler.add(1, greedy(), seed=1, choice=0, prompt_ids=[7], stop_ids=STOPS)
    rows = [Row(seq_id, 0, (7,), (0,), num_logits=1) for seq_id in (1, 0)]
    sampled = sampler.decode(StepPlan(tuple(rows)), np.array([likes(Z, Y), likes(Z, Y)]))
    assert [row.outcome.token_ids for row in sampled] == [(Z,), (Y,)]
