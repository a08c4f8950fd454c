"""Work that ends when the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

T = TypeVar("T")


async def until_disconnect(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """The result of `work`; when the client leaves first, `work` is cancelled and has ended before this raises.

    The request's body must have been read: then the next message of `receive` can only be the disconnect.

    Raises:
        ClientDisconnect: the client left first.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if leaving.done():  # even if the work is done too: this message doesn't come twice
            raise ClientDisconnect
        return working.result()
    finally:
        await cancel_all((working, leaving))


async def all_of(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order; at the first failure the others are cancelled and have ended before it is raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await cancel_all(tasks)


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels what is unfinished and waits for its end; results and failures are dropped."""
    tasks = tuple(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
