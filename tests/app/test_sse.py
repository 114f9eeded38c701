"""Server-sent events, byte by byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack

import pytest

from app.sse import EventStream, encode_event

SCOPE = {"type": "http", "asgi": {"spec_version": "2.3"}}


def test_an_event_is_one_line_whatever_the_text_holds() -> None:
    """Line breaks of every kind are inside JSON, so a client that splits lines never splits an event."""
    event = encode_event({"text": "a\n\nb\r\u2028é👋"})
    assert event == 'data: {"text":"a\\n\\nb\\r\u2028é👋"}\n\n'.encode()
    assert event.count(b"\n") == 2


class EndingError(Exception):
    pass


@pytest.mark.parametrize("ending", ["whole", "hangup", "failure"])
async def test_everything_is_freed_however_it_ends(ending: str) -> None:
    freed = []
    resources = ExitStack()
    resources.callback(freed.append, "resources")

    async def events() -> AsyncGenerator[bytes, None]:
        try:
            yield b"data: 1\n\n"
            if ending == "failure":
                raise EndingError
            if ending == "hangup":
                await never.wait()
        finally:
            freed.append("events")

    never = asyncio.Event()
    sent: list[dict] = []

    async def receive() -> dict:
        if ending != "hangup":
            await never.wait()
        while len(sent) < 2:
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def send(message: dict) -> None:
        sent.append(message)

    stream = EventStream(events(), resources)
    if ending == "failure":
        with pytest.raises(EndingError):
            await stream(SCOPE, receive, send)
    else:
        await stream(SCOPE, receive, send)
    assert freed == ["events", "resources"]
    assert sent[1]["body"] == b"data: 1\n\n"


async def test_a_stream_that_never_started_is_freed_too() -> None:
    """The head cannot be sent: the client is already gone."""
    freed = []
    resources = ExitStack()
    resources.callback(freed.append, "resources")

    async def events() -> AsyncGenerator[bytes, None]:
        yield b""

    async def receive() -> dict:
        return {"type": "http.disconnect"}

    async def send(message: dict) -> None:
        raise OSError("gone")

    await EventStream(events(), resources)({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send)
    assert freed == ["resources"]
