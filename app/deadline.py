"""Owns how long one answer may take by its client's own word (`timeout_s`): from the whole request to the last token,
fetching, decoding and waiting included.

Knows nothing of what is being waited for: whatever it is, it is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Self, TypeVar

from runner.errors import RequestError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """`at`: on the event loop's clock. None: no deadline."""

    seconds: float | None = None
    at: float | None = None

    @classmethod
    def after(cls, seconds: float | None) -> Self:
        return cls() if seconds is None else cls(seconds=seconds, at=asyncio.get_running_loop().time() + seconds)

    async def keep(self, work: Awaitable[T]) -> T:
        """The work's result. Raises RequestError of kind "deadline" once time is up; the work is cancelled then."""
        if self.at is None:
            return await work
        try:
            async with asyncio.timeout_at(self.at) as limit:
                return await work
        except TimeoutError:
            if not limit.expired():
                raise
            raise RequestError(
                "deadline",
                f"the answer was not complete within timeout_s ({self.seconds:g} s); allow more, or ask for less",
                param="timeout_s",
            ) from None


NO_DEADLINE = Deadline()
