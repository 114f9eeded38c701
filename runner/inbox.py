"""Messages for one request, as they come from the engine, and its end. Owns their order; knows no sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from runner.errors import EngineError, RequestError
from runner.messages import Progress, Rejected
from runner.requests import Message


class RequestInbox:
    """progress: told what is not for whoever waits. `fail` wakes the reader with an error."""

    def __init__(self, progress: Callable[[Progress], None] | None = None) -> None:
        self._queue: asyncio.Queue[Message | EngineError] = asyncio.Queue()
        self._progress = progress

    def put(self, message: Message) -> None:
        if isinstance(message, Progress):
            if self._progress is not None:
                self._progress(message)
            return
        self._queue.put_nowait(message)

    def fail(self, error: EngineError) -> None:
        self._queue.put_nowait(error)

    async def get(self) -> Message:
        """The next message. Raises EngineError."""
        item = await self._queue.get()
        if isinstance(item, EngineError):
            raise item
        if isinstance(item, Rejected):
            raise RequestError(item.kind, item.message, param=item.param, code=item.code)
        return item
