"""Owns the search for stop strings in text that arrives in pieces.

Knows nothing of tokens, choices or HTTP. Where the text is cut into pieces never changes the outcome: the stop string
that is complete first wins, and of those that end at the same character the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Checked:
    """Text that may be shown, and the stop string that ended it, if one did."""

    text: str
    hit: str | None = None


class StopChecker:
    """Holds back just what could be the start of a stop string.

    >>> checker = StopChecker(["DEF"])
    >>> [checker.push(piece) for piece in ("ABCD", "E", "X")]
    [Checked(text='ABC', hit=None), Checked(text='', hit=None), Checked(text='DEX', hit=None)]
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> Checked:
        if not text:
            return Checked("")
        self._held += text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            _, at, stop = min(found)
            shown, self._held = self._held[:at], ""
            return Checked(shown, stop)
        return Checked(self._release(len(self._held) - self._count_held()))

    def finish(self) -> str:
        """No more text will come, so what was held back is shown."""
        return self._release(len(self._held))

    def _release(self, count: int) -> str:
        shown, self._held = self._held[:count], self._held[count:]
        return shown

    def _count_held(self) -> int:
        """The longest end of the held text that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for count in range(min(longest, len(self._held)), 0, -1):
            tail = self._held[-count:]
            if any(stop.startswith(tail) for stop in self._stops):
                return count
        return 0
