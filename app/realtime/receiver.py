"""Owns waiting for the client: the next message, or the end that a limit of time or the server's stop puts to it.

Knows nothing of what messages say.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import WebSocket

from app.errors import ApiError
from app.realtime.config import Limits
from app.realtime.over import NORMAL, SessionOver


class Receiver:
    """is_busy: whether the client waits for us, which is no silence of its own. warn is called once, so many seconds
    before the session's end; drain when the server stops, and ends it."""

    def __init__(
        self,
        socket: WebSocket,
        limits: Limits,
        draining: asyncio.Event,
        *,
        is_busy: Callable[[], bool],
        warn: Callable[[float], Awaitable[None]],
        drain: Callable[[], Awaitable[SessionOver]],
    ) -> None:
        self._socket, self._limits, self._draining = socket, limits, draining
        self._is_busy, self._warn, self._drain = is_busy, warn, drain
        self._ends_at = time.monotonic() + limits.session_s
        self._warn_at: float | None = self._ends_at - min(limits.expiring_s, limits.session_s / 2)

    async def receive(self) -> dict[str, Any]:
        """The next message. Raises SessionOver."""
        receiving = asyncio.create_task(self._socket.receive())
        draining = asyncio.create_task(self._draining.wait())
        idle_at = self._find_idle()
        try:
            while True:
                marks = [idle_at, self._ends_at, *([self._warn_at] if self._warn_at is not None else [])]
                timeout = max(0.0, min(marks) - time.monotonic())
                await asyncio.wait({receiving, draining}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                if receiving.done():
                    return dict(receiving.result())
                if draining.done():
                    raise await self._drain()
                if self._is_busy():
                    idle_at = self._find_idle()
                await self._look_at_clock(idle_at)
        finally:
            receiving.cancel()
            draining.cancel()

    def _find_idle(self) -> float:
        return time.monotonic() + self._limits.idle_s

    async def _look_at_clock(self, idle_at: float) -> None:
        now = time.monotonic()
        if now >= self._ends_at:
            message = f"the session is {self._limits.session_s:g} s old, as old as one may get"
            raise SessionOver(NORMAL, ApiError(408, message, code="session_expired"))
        if now >= idle_at:
            message = f"nothing came for {self._limits.idle_s:g} s"
            raise SessionOver(NORMAL, ApiError(408, message, code="session_idle"))
        if self._warn_at is not None and now >= self._warn_at:
            self._warn_at = None
            await self._warn(self._ends_at - now)
