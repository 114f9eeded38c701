"""Owns server-sent events: their bytes, and a response that frees what it holds however it ends.

Knows nothing of what the events say.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # the second stops proxies from holding events


def encode_event(body: dict[str, Any]) -> bytes:
    """One line of JSON: line breaks inside strings are escaped, so an event never spans lines."""
    return b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


class EventStream(StreamingResponse):
    """Closes its generator and then its resources: at the end, after an error, and when the client hangs up."""

    def __init__(self, events: AsyncGenerator[bytes, None], resources: ExitStack) -> None:
        super().__init__(events, media_type="text/event-stream", headers=HEADERS)
        self._events = events
        self._resources = resources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._resources:
            try:
                await super().__call__(scope, receive, send)
            except ClientDisconnect:
                return  # some servers tell it so, others by cancelling
            finally:
                await self._events.aclose()
