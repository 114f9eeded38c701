"""The one door into the engine: an asyncio client that speaks plain-data messages over a socket.

Owns the process (or thread) at the other end and the routing of its answers; knows nothing of torch, models or HTTP.
The same class serves an engine in a process of its own and one in a thread of this process (CLI, tests).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Literal, TypeVar

import msgspec

from runner.config import EngineConfig
from runner.embed_messages import Embed
from runner.embedding_client import EmbeddingStream
from runner.errors import EngineDeadError, EngineError, EngineStartError, RequestError
from runner.hosting import EngineHandle, start_engine_process, start_engine_thread
from runner.messages import (
    Abort,
    Accepted,
    Delta,
    Drawn,
    DropCaches,
    EmbedAccepted,
    EngineInfo,
    Fatal,
    FromEngine,
    Generate,
    GetStats,
    Loading,
    Overlay,
    Progress,
    Rejected,
    Render,
    Rendered,
    Shutdown,
    Stats,
    StepOutput,
)
from runner.requests import Message
from runner.stream_client import EngineStream
from runner.stream_messages import OpenStream
from runner.wire import encode_frame, read_from_engine

_ENGINE_GONE = "the engine has stopped; restart the server"
_Answer = TypeVar("_Answer", bound=Message)


class GenerationStream:
    """One accepted request. Iterate for its deltas (all indexes mixed); leaving early aborts what is left."""

    def __init__(self, client: EngineClient, request_id: str, n: int, accepted: Accepted, inbox: _Inbox) -> None:
        self.accepted = accepted
        self._client = client
        self._request_id = request_id
        self._inbox = inbox
        self._open = set(range(n))

    async def __aiter__(self) -> AsyncIterator[Delta]:
        try:
            while self._open:
                message = await self._inbox.get()
                if not isinstance(message, Delta):
                    continue
                if message.finish_reason is not None:
                    self._open.discard(message.index)
                yield message
        finally:
            self.close()

    def end(self, index: int) -> None:
        """End one of the n answers because its text is complete; its last delta has finish_reason "stop"."""
        self._client.send(Abort(request_id=self._request_id, index=index, reason="stop"))

    def close(self) -> None:
        """Free everything the request still holds. Safe to call twice, and after the end."""
        self._client.forget(self._request_id, abort=bool(self._open))
        self._open.clear()


class _Inbox:
    """Messages for one request; `fail` wakes its reader with an error."""

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
        item = await self._queue.get()
        if isinstance(item, EngineError):
            raise item
        if isinstance(item, Rejected):
            raise RequestError(item.kind, item.message, param=item.param, code=item.code)
        return item


class EngineClient:
    """Sends requests to one engine and hands each its own answers."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        handle: EngineHandle,
        info: EngineInfo,
    ) -> None:
        self.info = info
        self._reader = reader
        self._writer = writer
        self.handle = handle
        self._inboxes: dict[str, _Inbox] = {}
        self._dead: EngineDeadError | None = None
        self._pump = asyncio.create_task(self._read_forever())

    @property
    def is_alive(self) -> bool:
        return self._dead is None and self.handle.is_alive()

    async def generate(
        self, request: Generate, *, progress: Callable[[Progress], None] | None = None
    ) -> GenerationStream:
        """Submit and wait until everything that could be refused has been checked.

        Raises RequestError when refused, EngineDeadError when the engine is gone. If the caller is cancelled while
        waiting, the request is aborted wherever it is.
        """
        inbox, accepted = await self._ask(request, request.request_id, progress)
        assert isinstance(accepted, Accepted)
        return GenerationStream(self, request.request_id, request.n, accepted, inbox)

    async def embed(self, request: Embed) -> EmbeddingStream:
        """As `generate`, for vectors."""
        inbox, accepted = await self._ask(request, request.request_id)
        assert isinstance(accepted, EmbedAccepted)
        return EmbeddingStream(self, request, accepted, inbox)

    def open_stream(self, request: OpenStream) -> EngineStream:
        """A stream of windows; what is wrong with it comes out of its events."""
        inbox = self._enter(request.request_id, None)
        try:
            self.send(request)
        except EngineDeadError:
            self.forget(request.request_id, abort=False)
            raise
        return EngineStream(self, request, inbox, self._writer.drain)

    async def render(self, request: Render) -> Rendered:
        return await self._ask_once(request, request.request_id, Rendered)

    async def draw(self, request: Overlay) -> Drawn:
        return await self._ask_once(request, request.request_id, Drawn)

    async def stats(self, request_id: str) -> Stats:
        return await self._ask_once(GetStats(request_id=request_id), request_id, Stats)

    def drop_caches(self) -> None:
        """Have what is asked from now on decoded, selected and encoded afresh; for measuring."""
        self.send(DropCaches())

    async def close(self, *, grace_s: float = 5.0) -> None:
        """Stop the engine: let running requests finish for `grace_s`, then end it in any case."""
        with contextlib.suppress(EngineError):
            self.send(Shutdown(grace_s=grace_s))
        deadline = asyncio.get_running_loop().time() + grace_s + 5.0
        while self.handle.is_alive() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        if self.handle.is_alive():
            self.handle.kill()
        self.handle.join(5.0)
        self._pump.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._pump
        await _close_writer(self._writer)

    # ------------------------------------------------------------------------------------- used by GenerationStream

    def send(self, message: Message) -> None:
        if self._dead is not None:
            raise self._dead
        self._writer.write(encode_frame(message))

    def forget(self, request_id: str, *, abort: bool) -> None:
        known = self._inboxes.pop(request_id, None) is not None
        if abort and known and self._dead is None:
            self.send(Abort(request_id=request_id))

    # ------------------------------------------------------------------------------------------------------ inside

    async def _ask(
        self, request: Message, request_id: str, progress: Callable[[Progress], None] | None = None
    ) -> tuple[_Inbox, Message]:
        inbox = self._enter(request_id, progress)
        try:
            self.send(request)
            await self._writer.drain()
            return inbox, await inbox.get()
        except BaseException as error:
            self.forget(request_id, abort=not isinstance(error, RequestError))
            raise

    def _enter(self, request_id: str, progress: Callable[[Progress], None] | None) -> _Inbox:
        if request_id in self._inboxes:
            raise RequestError("invalid", f"request id {request_id!r} is already in use", param="request_id")
        inbox = self._inboxes[request_id] = _Inbox(progress)
        return inbox

    async def _ask_once(self, request: Message, request_id: str, kind: type[_Answer]) -> _Answer:
        _, answer = await self._ask(request, request_id)
        self.forget(request_id, abort=False)
        assert isinstance(answer, kind)
        return answer

    async def _read_forever(self) -> None:
        try:
            while True:
                self._route(await read_from_engine(self._reader))
        except (asyncio.IncompleteReadError, ConnectionError, msgspec.DecodeError):
            pass
        finally:
            self._dead = EngineDeadError(_ENGINE_GONE)
            for inbox in self._inboxes.values():
                inbox.fail(self._dead)

    def _route(self, message: FromEngine) -> None:
        if isinstance(message, StepOutput):
            for delta in message.deltas:
                self._deliver(delta.request_id, delta)
            for vector in message.vectors:
                self._deliver(vector.request_id, vector)
        elif not isinstance(message, EngineInfo | Loading | Fatal):
            self._deliver(message.request_id, message)

    def _deliver(self, request_id: str, message: Message) -> None:
        inbox = self._inboxes.get(request_id)
        if inbox is not None:  # else: aborted while this was on its way
            inbox.put(message)


async def start_engine(
    config: EngineConfig,
    *,
    where: Literal["process", "thread"],
    on_loading: Callable[[Loading], None] | None = None,
) -> EngineClient:
    """Start an engine and wait until its model is loaded.

    Raises EngineStartError with what to do when the model cannot be served, or when the engine ends while loading.
    """
    ours, handle = start_engine_process(config) if where == "process" else start_engine_thread(config)
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    try:
        info = await _wait_until_loaded(reader, on_loading)
    except BaseException:
        handle.kill()
        await _close_writer(writer)
        raise
    return EngineClient(reader, writer, handle, info)


async def _wait_until_loaded(reader: asyncio.StreamReader, on_loading: Callable[[Loading], None] | None) -> EngineInfo:
    try:
        while True:
            message = await read_from_engine(reader)
            if isinstance(message, EngineInfo):
                return message
            if isinstance(message, Fatal):
                raise EngineStartError(message.message)
            if isinstance(message, Loading) and on_loading is not None:
                on_loading(message)
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise EngineStartError("the engine ended while loading; its log says why") from error


async def _close_writer(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
