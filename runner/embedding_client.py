"""The client's end of embedding requests. Owns what is still open of one; knows no sockets and no routing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from runner.embed_messages import Embed, Vector
from runner.errors import RequestError
from runner.messages import Delta, EmbedAccepted
from runner.requests import Message


class Door(Protocol):
    """What is asked of an EngineClient."""

    def send(self, message: Message) -> None: ...
    def forget(self, request_id: str, *, abort: bool) -> None: ...


class Inbox(Protocol):
    async def get(self) -> Message:
        """The next message for the request. Raises EngineError."""
        ...


class EmbeddingStream:
    """One accepted embedding request. Iterate for its vectors, in the order in which they are computed; leaving early
    aborts what is left."""

    def __init__(self, client: Door, request: Embed, accepted: EmbedAccepted, inbox: Inbox) -> None:
        self.usages = accepted.usages
        self._client = client
        self._request_id = request.request_id
        self._inbox = inbox
        self._open = set(range(len(request.inputs)))

    async def __aiter__(self) -> AsyncIterator[Vector]:
        try:
            while self._open:
                message = await self._inbox.get()
                if isinstance(message, Delta):  # the end of an input without its vector
                    raise end_of_vector(message)
                if isinstance(message, Vector):
                    self._open.discard(message.index)
                    yield message
        finally:
            self.close()

    def close(self) -> None:
        """Free everything the request still holds. Safe to call twice, and after the end."""
        self._client.forget(self._request_id, abort=bool(self._open))
        self._open.clear()


def end_of_vector(delta: Delta) -> RequestError:
    if delta.finish_reason == "abort":
        return RequestError("unavailable", "the server is shutting down; send the request again later")
    return RequestError("internal", "the engine failed on this request")
