"""Whether an engine that is there also answers: a question now and then, and a count of those that it leaves open. Owns
the two messages and the count; knows no requests.

Silence is counted in sleeps of ours and not read off a clock, so that a process of ours that was stopped itself, or
a machine that was, finds nobody silent. The engine's end is not the thread that computes: a step may take as long as it
does. What it computes is looked at, too (runner/step_clock.py): a step in which nothing was computed for STALL_FACTOR
times as long is silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from runner.requests import Message

PARTS = 10  # questions that are asked in the time after which silence is one
STALL_FACTOR = 15


class Ping(Message, frozen=True, kw_only=True):
    number: int


class Pong(Message, frozen=True, kw_only=True):
    """num_idle: questions in a row, up to this one, that found the model's thread in the step of the one before with
    nothing computed since."""

    number: int
    num_idle: int


class Heartbeat:
    """silence_s: how long may pass without an answer; it is noticed a tenth of that later at most. on_silence: called
    then."""

    def __init__(self, ask: Callable[[Ping], None], on_silence: Callable[[], None], *, silence_s: float) -> None:
        self._ask, self._on_silence = ask, on_silence
        self._part_s = silence_s / PARTS
        self._asked = self._answered = 0
        self.is_silent = False

    def hear(self, pong: Pong) -> None:
        self._answered = pong.number
        self._note(is_silent=pong.num_idle >= PARTS * STALL_FACTOR)

    async def run(self) -> None:
        """For ever; one question at a time."""
        while True:
            self._asked += 1
            self._ask(Ping(number=self._asked))
            parts = 0
            while parts == 0 or self._answered < self._asked:
                await asyncio.sleep(self._part_s)
                parts += 1
                if parts >= PARTS and self._answered < self._asked:
                    self._note(is_silent=True)

    def _note(self, *, is_silent: bool) -> None:
        was_silent, self.is_silent = self.is_silent, is_silent
        if is_silent and not was_silent:
            self._on_silence()
