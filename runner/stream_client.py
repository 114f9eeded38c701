"""The client's end of a stream: media in, as far as there is room; windows with their vectors and dropped frames out.
Owns what is on its way in either direction; knows no sockets, no pictures and not what sent the media.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from runner.embed_messages import Vector
from runner.embedding_client import Door, Inbox, end_of_vector
from runner.messages import Delta
from runner.stream_messages import (
    FramesDropped,
    OpenStream,
    StreamData,
    StreamEnd,
    StreamEnded,
    StreamOpened,
    StreamTaken,
    WindowLaid,
)

MAX_UNTAKEN = 256
MAX_UNTAKEN_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowVector:
    """A window and its vector, little-endian float32. model_s: from the window's being laid out to its vector."""

    window: WindowLaid
    data: bytes
    model_s: float


StreamEventOut = StreamOpened | WindowVector | FramesDropped | StreamEnded


class EngineStream:
    """Iterate for events, once; `feed` and `end` beside that. Leaving early ends the stream and frees all it holds."""

    def __init__(self, client: Door, request: OpenStream, inbox: Inbox, drain: Callable[[], Awaitable[None]]) -> None:
        self._client, self._request_id, self._inbox, self._drain = client, request.request_id, inbox, drain
        self._ends_by_itself = request.source is not None
        self._laid: dict[int, tuple[WindowLaid, float]] = {}
        self._ends: deque[StreamEnded] = deque()
        self._untaken = self._untaken_bytes = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._is_open = True

    async def feed(self, data: bytes, *, seq: int, time_s: float) -> None:
        """Send a piece of media; waits while the engine has no room for it, or until the stream is over."""
        await self._has_room.wait()
        if not self._is_open:
            return
        self._untaken += 1
        self._untaken_bytes += len(data)
        self._note_room()
        self._client.send(StreamData(request_id=self._request_id, data=data, seq=seq, time_s=time_s))
        await self._drain()

    def end(self, end: StreamEnd) -> None:
        self._client.send(end)

    async def __aiter__(self) -> AsyncIterator[StreamEventOut]:
        """Ends after a StreamEnded where there is a source. A StreamEnded comes after the vectors of its windows.
        Raises RequestError when the stream cannot go on, EngineDeadError."""
        try:
            while True:
                message = await self._inbox.get()
                match message:
                    case StreamTaken(count=count, size_bytes=size):
                        self._untaken, self._untaken_bytes = self._untaken - count, self._untaken_bytes - size
                        self._note_room()
                    case WindowLaid():
                        self._laid[message.index] = message, time.monotonic()
                    case Vector(index=index, data=data):
                        window, laid_at = self._laid.pop(index)
                        yield WindowVector(window=window, data=data, model_s=time.monotonic() - laid_at)
                    case Delta():  # a window's end without its vector
                        raise end_of_vector(message)
                    case StreamEnded():
                        self._ends.append(message)
                    case StreamOpened() | FramesDropped():
                        yield message
                while self._ends and min(self._laid, default=self._ends[0].windows) >= self._ends[0].windows:
                    yield self._ends.popleft()
                    if self._ends_by_itself:
                        self._is_open = False
                        return
        finally:
            self.close()

    def close(self) -> None:
        """Safe to call twice, and after the end."""
        self._client.forget(self._request_id, abort=self._is_open)
        self._is_open = False
        self._has_room.set()

    def _note_room(self) -> None:
        if self._untaken < MAX_UNTAKEN and self._untaken_bytes < MAX_UNTAKEN_BYTES:
            self._has_room.set()
        elif self._is_open:
            self._has_room.clear()
