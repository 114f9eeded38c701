"""Owns the watch for clients that hang up, and the freeing of what a request holds however it ends.

Knows nothing of what the work is. Only for the time between the end of the request's body and the start of its answer:
before, reading the body notices; after, EventStream (app/sse.py) does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

from app.errors import ClientGoneError

T = TypeVar("T")


async def run_while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The work's result. When the client hangs up first the work is cancelled and awaited, then ClientGoneError."""
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_wait_for_hangup(request))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGoneError
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _wait_for_hangup(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
