"""A stream of the scripted engine: each piece of media is a window of its own, and the bytes b"broken" break it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator

from runner.errors import RequestError
from runner.stream_client import StreamEventOut, WindowVector
from runner.stream_messages import (
    FramesDropped,
    OpenStream,
    StreamEnd,
    StreamEnded,
    StreamOpened,
    WindowLaid,
    WindowOptions,
)
from tests.app.fake_engine import FakeEngine


class FakeEngineStream:
    """`held`: pieces that wait for an end, which a clear drops and a commit embeds."""

    def __init__(self, request: OpenStream) -> None:
        self.request = request
        self.is_closed = False
        self._events: asyncio.Queue[StreamEventOut | RequestError] = asyncio.Queue()
        self._windows = 0
        self._held: list[tuple[int, float]] = []
        window = WindowOptions(duration_s=4.0, stride_s=2.0, fps=2.0, max_frames=8)
        self._events.put_nowait(
            StreamOpened(
                request_id=request.request_id, window=window, evs=request.evs, frames_per_slot=2, width=4
            )
        )  # fmt: skip

    async def feed(self, data: bytes, *, seq: int, time_s: float) -> None:
        if data == b"broken":
            self._events.put_nowait(RequestError("undecodable", "it is broken"))
        elif data == b"held":
            self._held.append((seq, time_s))
        else:
            self._embed(seq, time_s)

    def end(self, end: StreamEnd) -> None:
        if end.how == "commit":
            for seq, time_s in self._held:
                self._embed(seq, time_s)
        elif self._held:
            seqs = tuple(seq for seq, _ in self._held)
            self._events.put_nowait(FramesDropped(request_id=self.request.request_id, seqs=seqs, reason="closed"))
        self._held.clear()
        ended = StreamEnded(request_id=self.request.request_id, windows=self._windows, pictures=self._windows)
        self._events.put_nowait(ended)

    def close(self) -> None:
        self.is_closed = True

    async def __aiter__(self) -> AsyncIterator[StreamEventOut]:
        try:
            while True:
                event = await self._events.get()
                if isinstance(event, RequestError):
                    raise event
                yield event
        finally:
            self.close()

    def _embed(self, seq: int, time_s: float) -> None:
        window = WindowLaid(
            request_id=self.request.request_id, index=self._windows, start_s=0.0, end_s=2.0, origin_s=time_s,
            frame_seqs=(seq,), times_s=(0.0,), size=(32, 32), prompt_tokens=3, slots=1, cells=4, kept=4, changed=4,
            encoder_cells=4, decoded_s=0.1,
        )  # fmt: skip
        self._windows += 1
        self._events.put_nowait(WindowVector(window=window, data=struct.pack("<4f", 1, 2, 3, 4), model_s=0.2))


class StreamingEngine(FakeEngine):
    """The scripted engine, with streams."""

    def __init__(self) -> None:
        super().__init__()
        self.streams: list[FakeEngineStream] = []

    def open_stream(self, request: OpenStream) -> FakeEngineStream:
        self.streams.append(FakeEngineStream(request))
        return self.streams[-1]
