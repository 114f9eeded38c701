"""Owns the sessions that are open: how many there may be, and their end when the server stops.

Knows nothing of what a session does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from runner.errors import RequestError


class Drainable(Protocol):
    draining: asyncio.Event


class SessionRegistry:
    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._open: set[Drainable] = set()

    def __len__(self) -> int:
        return len(self._open)

    def check_room(self) -> None:
        if len(self._open) >= self._max_sessions:
            raise RequestError(
                "queue_full", f"{self._max_sessions} sessions are open, as many as may be; try again later",
                code="too_many_sessions",
            )  # fmt: skip

    @contextmanager
    def holding(self, session: Drainable) -> Iterator[None]:
        self._open.add(session)
        try:
            yield
        finally:
            self._open.discard(session)

    async def drain(self, grace_s: float) -> None:
        """Ask all to come to an end, and wait for them no longer than `grace_s`."""
        for session in self._open:
            session.draining.set()
        deadline = asyncio.get_running_loop().time() + grace_s
        while self._open and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
