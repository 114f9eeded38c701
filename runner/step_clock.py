"""Whether the thread that owns the model computes in its steps. Owns what is known of the step that is going on; knows
nothing of what a step does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

LEAST_CPU_S = 1e-3  # between two looks: a thread that waits for nothing and is starved by all others gets more


class StepClock:
    """Made by the model's thread, which alone enters steps; another one looks."""

    def __init__(self) -> None:
        """Where the system does not tell a thread's CPU time, nothing is ever found idle."""
        tells = hasattr(time, "pthread_getcpuclockid")
        self._clock = time.pthread_getcpuclockid(threading.get_ident()) if tells else None
        self._number = 0  # odd: in a step
        self._seen, self._used_s, self._num_idle = 0, 0.0, 0

    @contextmanager
    def step(self) -> Iterator[None]:
        self._number += 1
        try:
            yield
        finally:
            self._number += 1

    def look(self) -> int:
        """How many looks in a row, this one included, found the step of the look before, and nothing computed since."""
        number = self._number
        used_s = 0.0 if self._clock is None else time.clock_gettime(self._clock)
        is_idle = number == self._seen and number % 2 == 1 and used_s - self._used_s < LEAST_CPU_S
        self._num_idle = self._num_idle + 1 if is_idle and self._clock is not None else 0
        self._seen, self._used_s = number, used_s
        return self._num_idle
