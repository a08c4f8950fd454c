"""The line of grammars that wait to be compiled: few at once, and tenants take turns; knows nothing of requests."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from contextlib import suppress

import anyio.to_thread

from mtplx.sampling_params import Grammar
from mtplx.text.grammar import CompiledGrammar, GrammarCompiler

MAX_COMPILES = 2  # at once

Compiling = asyncio.Task[CompiledGrammar]


class GrammarLine:
    """Lives on one event loop. A tenant's own grammars are compiled in the order in which they came.

    A place is taken until its thread has ended, also where nobody waits for it any more: threads can't be stopped.
    Invariant: while anybody waits all places are taken.
    """

    def __init__(self, compiler: GrammarCompiler, max_compiles: int = MAX_COMPILES) -> None:
        self._compiler = compiler
        self._max_compiles = max_compiles
        self._compiling: set[Compiling] = set()
        self._waiting: OrderedDict[bytes, deque[_Turn]] = OrderedDict()  # by tenant, whose turn is next in front

    async def compile(self, grammar: Grammar, tenant: bytes = b"") -> CompiledGrammar:
        """Returns and raises what the compiler does; cancelled, it leaves the line."""
        turn = _Turn(grammar)
        self._waiting.setdefault(tenant, deque()).append(turn)
        self._fill_places()
        try:
            compiling = await turn.has_come
        except asyncio.CancelledError:
            self._leave(turn, tenant)
            raise
        return await asyncio.shield(compiling)

    def _fill_places(self) -> None:
        while self._waiting and len(self._compiling) < self._max_compiles:
            tenant, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[tenant] = turns  # behind the others
            if turn.has_come.cancelled():
                continue
            compiling = asyncio.create_task(anyio.to_thread.run_sync(self._compiler.compile, turn.grammar))
            self._compiling.add(compiling)
            compiling.add_done_callback(self._end)
            turn.has_come.set_result(compiling)

    def _end(self, compiling: Compiling) -> None:
        self._compiling.discard(compiling)
        if not compiling.cancelled():
            compiling.exception()  # whoever asked may have left, and then nobody else takes it
        self._fill_places()

    def _leave(self, turn: _Turn, tenant: bytes) -> None:
        turns = self._waiting.get(tenant, deque())
        with suppress(ValueError):  # its turn had come
            turns.remove(turn)
        if not turns:
            self._waiting.pop(tenant, None)


class _Turn:
    """One place in the line; each is itself alone, whatever its grammar."""

    __slots__ = ("grammar", "has_come")

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.has_come: asyncio.Future[Compiling] = asyncio.get_running_loop().create_future()
