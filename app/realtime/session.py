"""Owns one session of `WS /v1/realtime`: its events in both directions, its limits, its end.

Knows nothing of pictures, models or how a socket is accepted. Two tasks: one reads what the client sends and hands
media to the engine, waiting where that has no room; the other sends what the engine gives. Whichever ends first ends
the session, and all that it held is freed.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from fastapi import WebSocket
from pydantic import ValidationError
from starlette.websockets import WebSocketDisconnect

from app.errors import ApiError, describe_error, error_body
from app.log import log_failure
from app.realtime.config import DEFAULTS, Limits, make_open, merge_knobs, output_options, session_body
from app.realtime.count import SessionCount
from app.realtime.events import (
    Append,
    Clear,
    ClientEvent,
    Commit,
    EmbedText,
    SessionKnobs,
    SessionUpdate,
    event_id_of,
    parse_event,
)
from app.realtime.media import MediaClock, Piece
from app.realtime.output import OutputOptions, window_body
from app.realtime.over import BAD_DATA, GOING_AWAY, NORMAL, OWN_FAULT, TRY_LATER, SessionOver, code_of
from app.realtime.receiver import Receiver
from app.realtime.texts import Texts
from app.state import ServerState
from runner.errors import EngineError, RequestError
from runner.stream_client import EngineStream, StreamEventOut, WindowVector
from runner.stream_messages import FramesDropped, StreamEnd, StreamEnded, StreamOpened

MAX_BAD_EVENTS = 16
CLEAR_S = 5.0
SEND_S = 20.0  # a client that does not read for so long is gone


class Session:
    """`run` returns when the session is over and everything it held is freed."""

    def __init__(self, socket: WebSocket, state: ServerState, *, model: str, limits: Limits) -> None:
        self.id = f"sess_{uuid.uuid4().hex}"
        self.draining = asyncio.Event()
        self._socket, self._state, self._model, self._limits = socket, state, model, limits
        self._knobs = DEFAULTS
        self._opened: StreamOpened | None = None
        self._stream: EngineStream | None = None
        self._pump: asyncio.Task[None] | None = None
        self._has_media = False
        self._ends: deque[str] = deque()
        self._clock = MediaClock(None)
        self._count = SessionCount()
        self._texts = Texts(state, self.id, send=self._send_body, fail=self._send_error)
        self._receiver = Receiver(
            socket, limits, self.draining, is_busy=self._is_busy, warn=self._warn, drain=self._drain
        )
        self._sending = asyncio.Lock()
        self._bad = 0
        self._over: asyncio.Future[SessionOver] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        reading = asyncio.create_task(self._read_forever())
        try:
            await self._send("session.created", session=self._body())
            ends: set[asyncio.Future[Any]] = {reading, self._over}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            over = self._over.result() if self._over.done() else _why(reading)
            if over.error is not None:
                await self._clear_rest()
        except (WebSocketDisconnect, ConnectionError, TimeoutError, RuntimeError):
            over = SessionOver(NORMAL)
        finally:
            await self._free(reading)
        with contextlib.suppress(WebSocketDisconnect, ConnectionError, TimeoutError, RuntimeError):
            await self._say_goodbye(over)

    async def _clear_rest(self) -> None:
        """A session that ends while it can still be told says what becomes of the frames that are in no window."""
        if self._pump is not None and not self._pump.done() and self._has_media:
            self._end_part("clear")
            async with asyncio.timeout(CLEAR_S):
                while self._ends and not self._pump.done():
                    await asyncio.sleep(0.01)

    async def _free(self, reading: asyncio.Task[None]) -> None:
        tasks = [reading, *self._texts.tasks, *([self._pump] if self._pump else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._stream is not None:
            self._stream.close()

    async def _say_goodbye(self, over: SessionOver) -> None:
        if over.error is not None:
            await self._send_error(over.error, None)
        await self._send("session.stats", stats={**self._count.body(), "texts": self._texts.count})
        await self._socket.close(over.code)

    # ------------------------------------------------------------------------------------------------ from the client

    async def _read_forever(self) -> None:
        while True:
            message = await self._receiver.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message.get("code", NORMAL))
            await self._take(message.get("text"), message.get("bytes"))

    async def _take(self, text: str | None, data: bytes | None) -> None:
        """What is wrong is refused by name and changes nothing; too much of it ends the session."""
        event_id: str | None = None
        try:
            if text is not None:
                event = parse_event(text)
                event_id = event.event_id
                await self._handle(event)
            elif data is not None:
                await self._feed(self._clock.take(data))
            self._bad = 0
        except (ValidationError, RequestError, ApiError) as error:
            self._bad += 1
            if isinstance(error, RequestError) and error.code == "too_many_sessions":
                raise SessionOver(TRY_LATER, error) from error
            await self._send_error(error, event_id or event_id_of((text or "")[:65536]))
            if self._bad >= MAX_BAD_EVENTS:
                message = f"{self._bad} messages in a row could not be understood"
                raise SessionOver(BAD_DATA, ApiError(400, message, code="too_many_errors")) from error

    async def _drain(self) -> SessionOver:
        """The server stops: what came is still embedded, nothing more is taken."""
        await self._send("session.expiring", expires_in_s=0.0, reason="draining")
        if self._stream is not None and self._has_media:
            self._end_part("commit")
            while self._ends:
                await asyncio.sleep(0.02)
        return SessionOver(GOING_AWAY, RequestError("unavailable", "the server is shutting down; connect again later"))

    def _is_busy(self) -> bool:
        return bool(self._ends or self._texts.tasks)

    async def _warn(self, left_s: float) -> None:
        await self._send("session.expiring", expires_in_s=round(left_s, 3), reason="session_limit")

    async def _handle(self, event: ClientEvent) -> None:
        match event:
            case SessionUpdate(session=knobs):
                await self._update(knobs)
            case Append():
                await self._feed(self._clock.read(event, self._limits.max_message_bytes))
            case Commit():
                self._end_part("commit")
            case Clear():
                self._end_part("clear")
            case EmbedText():
                self._texts.start(event, self._knobs)

    async def _update(self, knobs: SessionKnobs) -> None:
        """Before a part's first piece; the values in force come from the engine."""
        if self._has_media or self._ends:
            raise RequestError(
                "invalid", "the session has media that is in no window yet; commit or clear it before an update",
                code="session_busy", param="session",
            )  # fmt: skip
        if knobs.model is not None:
            self._state.check_model(knobs.model)
        old, self._knobs = self._knobs, merge_knobs(self._knobs, knobs)
        try:
            await self._open()
        except BaseException:
            self._knobs = old
            raise
        await self._send("session.updated", session=self._body())

    async def _feed(self, piece: Piece) -> None:
        if self._stream is None:
            await self._open()
        assert self._stream is not None
        self._has_media = True
        await self._stream.feed(piece.data, seq=piece.seq, time_s=piece.time_s)

    def _end_part(self, how: str) -> None:
        if self._stream is None or not self._has_media:
            raise RequestError("invalid", "there is nothing in the buffer", code="input_video_buffer_empty")
        assert how in ("commit", "clear")
        self._ends.append(how)
        self._stream.end(StreamEnd(request_id=self._request_id, how="commit" if how == "commit" else "clear"))
        self._has_media = False
        self._clock = MediaClock(self._knobs.input)

    # -------------------------------------------------------------------------------------------- to the engine, back

    async def _open(self) -> None:
        """A stream with the session's values, in place of the one there was. Raises RequestError."""
        self._state.check_serving()
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        if self._stream is not None:
            self._stream.close()
        self._stream = self._pump = self._opened = None
        self._request_id = f"{self.id}-{uuid.uuid4().hex[:8]}"
        stream = self._state.client.open_stream(make_open(self._knobs, self._request_id))
        events = aiter(stream)
        try:
            opened = await anext(events)
        except BaseException:
            stream.close()
            raise
        assert isinstance(opened, StreamOpened)
        self._opened, self._stream = opened, stream
        self._clock = MediaClock(self._knobs.input)
        self._pump = asyncio.create_task(self._follow(events))

    async def _follow(self, events: AsyncIterator[StreamEventOut]) -> None:
        """Send what the engine gives. A stream that cannot go on ends the session."""
        output = output_options(self._knobs)
        try:
            async for event in events:
                await self._tell(event, output)
        except (WebSocketDisconnect, ConnectionError, TimeoutError, RuntimeError):
            self._end(SessionOver(NORMAL))
        except EngineError as error:
            self._end(SessionOver(code_of(error), error))
        except Exception as error:
            log_failure("session_failed", error, id=self.id)
            self._end(SessionOver(OWN_FAULT, error))

    def _end(self, over: SessionOver) -> None:
        if not self._over.done():
            self._over.set_result(over)

    async def _tell(self, event: StreamEventOut, output: OutputOptions) -> None:
        match event:
            case WindowVector():
                self._count.add_window(event.window)
                await self._send_body(window_body(event, output))
            case FramesDropped(seqs=seqs, reason=reason):
                self._count.add_dropped(event)
                await self._send("input_video_buffer.dropped", seqs=list(seqs), reason=reason)
            case StreamEnded(windows=windows, pictures=pictures):
                self._count.begin_part()
                what = {"commit": "committed", "clear": "cleared"}[self._ends.popleft()]
                await self._send(f"input_video_buffer.{what}", windows=windows, pictures=pictures)

    # -------------------------------------------------------------------------------------------------- to the client

    def _body(self) -> dict[str, Any]:
        width = self._state.client.info.embedding_width
        return session_body(self.id, self._model, self._knobs, self._limits, dim=width, opened=self._opened)

    async def _send_error(self, error: Exception, event_id: str | None) -> None:
        body = error_body(describe_error(error))["error"]
        await self._send("error", error={**body, "event_id": event_id})

    async def _send(self, kind: str, **fields: Any) -> None:
        await self._send_body({"type": kind, **fields})

    async def _send_body(self, body: dict[str, Any]) -> None:
        """One event at a time; a client that does not take it in time is gone."""
        async with self._sending:
            named = {"event_id": f"event_{uuid.uuid4().hex[:16]}", **body}
            await asyncio.wait_for(self._socket.send_json(named), SEND_S)


def _why(reading: asyncio.Task[None]) -> SessionOver:
    error = reading.exception()
    match error:
        case SessionOver():
            return error
        case WebSocketDisconnect() | ConnectionError() | TimeoutError() | None:
            return SessionOver(NORMAL)
        case EngineError():
            return SessionOver(OWN_FAULT, error)
        case _:
            assert isinstance(error, Exception)
            log_failure("session_failed", error)
            return SessionOver(OWN_FAULT, error)
