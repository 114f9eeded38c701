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
from runner.errors import EngineDeadError, EngineError, EngineSilentError, EngineStartError, RequestError
from runner.heartbeat import Heartbeat, Pong
from runner.hosting import EngineHandle, start_engine_process, start_engine_thread
from runner.inbox import RequestInbox
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
_ENGINE_SILENT = "the engine does not answer; try again later"
_Answer = TypeVar("_Answer", bound=Message)


class GenerationStream:
    """One accepted request. Iterate for its deltas (all indexes mixed); leaving early aborts what is left."""

    def __init__(self, client: EngineClient, request_id: str, n: int, accepted: Accepted, inbox: RequestInbox) -> None:
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


class EngineClient:
    """Sends requests to one engine and hands each its own answers."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        handle: EngineHandle,
        info: EngineInfo,
        *,
        silence_s: float,
    ) -> None:
        """silence_s: see Heartbeat."""
        self.info = info
        self._reader = reader
        self._writer = writer
        self.handle = handle
        self._inboxes: dict[str, RequestInbox] = {}
        self._dead: EngineDeadError | None = None
        self._heartbeat = Heartbeat(self.send, self._fail_all, silence_s=silence_s)
        self._tasks = [asyncio.create_task(work) for work in (self._read_forever(), self._heartbeat.run())]

    @property
    def is_alive(self) -> bool:
        return self._dead is None and self.handle.is_alive()

    @property
    def trouble(self) -> EngineDeadError | None:
        """Why no request would be answered now: the engine is gone, or it is there and silent, which may pass."""
        if not self.is_alive:
            return self._dead or EngineDeadError(_ENGINE_GONE)
        return EngineSilentError(_ENGINE_SILENT) if self._heartbeat.is_silent else None

    async def generate(
        self, request: Generate, *, progress: Callable[[Progress], None] | None = None
    ) -> GenerationStream:
        """Submit and wait until everything that could be refused has been checked.

        Raises RequestError when refused, EngineDeadError when the engine is gone or silent. If the caller is cancelled
        while waiting, the request is aborted wherever it is.
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
        """Stop the engine: let running requests finish for `grace_s`, then end it in any case; at once if it is
        silent."""
        with contextlib.suppress(EngineError):
            self.send(Shutdown(grace_s=grace_s))
        deadline = asyncio.get_running_loop().time() + (0.0 if self._heartbeat.is_silent else grace_s + 5.0)
        while self.handle.is_alive() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        if self.handle.is_alive():
            self.handle.kill()
        self.handle.join(5.0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
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
    ) -> tuple[RequestInbox, Message]:
        inbox = self._enter(request_id, progress)
        try:
            self.send(request)
            return inbox, await inbox.get()
        except BaseException as error:
            self.forget(request_id, abort=not isinstance(error, RequestError))
            raise

    def _enter(self, request_id: str, progress: Callable[[Progress], None] | None) -> RequestInbox:
        if (trouble := self.trouble) is not None:
            raise trouble
        if request_id in self._inboxes:
            raise RequestError("invalid", f"request id {request_id!r} is already in use", param="request_id")
        inbox = self._inboxes[request_id] = RequestInbox(progress)
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
            self._tasks[1].cancel()
            self._fail_all()

    def _fail_all(self) -> None:
        """Whoever waits is told why. What the requests hold is freed as their callers leave, at the other end when it
        hears of that."""
        for inbox in self._inboxes.values():
            inbox.fail(self._dead or EngineSilentError(_ENGINE_SILENT))

    def _route(self, message: FromEngine) -> None:
        if isinstance(message, StepOutput):
            for delta in message.deltas:
                self._deliver(delta.request_id, delta)
            for vector in message.vectors:
                self._deliver(vector.request_id, vector)
        elif isinstance(message, Pong):
            self._heartbeat.hear(message)
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
    return EngineClient(reader, writer, handle, info, silence_s=config.silence_s)


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
