"""How many threads compute: one for each core that nobody else is using just now. Owns the count; knows no model.

Two threads on one core wait for each other at every operator: where another program takes one core of two, a step with
two threads takes four times as long as one with one (measured, decoding half a billion weights: 120 and 480 ms; alone
on the machine two threads take 85 ms). Results must not depend on the count, and do not where few rows are multiplied
by arranged weights; all other steps run on all threads.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

SAMPLE_S = 0.2
FEW_ROWS = 32
STAT = Path("/proc/stat")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_WORK = (0, 1, 2, 5, 6, 7)  # user, nice, system, irq, softirq, steal


class ComputeThreads:
    """Sets this thread's count for torch between steps. `most`: when nobody else needs a core. For models whose
    weights are arranged (runner/linear_forms.py)."""

    def __init__(self, most: int) -> None:
        self.count = self._most = self._free = most
        self._num_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else most
        self._last = _Sample()

    def adjust(self, rows: int, *, encodes: bool = False) -> None:
        """For a step of so many rows, which encodes pictures first or not."""
        if time.monotonic() - self._last.at_s >= SAMPLE_S:
            before, self._last = self._last, _Sample()
            others = _others(before, self._last)
            self._free = choose_threads(self._most, num_cpus=self._num_cpus, others=others) if others else self._most
        count = self._free if rows <= FEW_ROWS and not encodes else self._most
        if count != self.count:
            self.count = count
            torch.set_num_threads(count)


def choose_threads(most: int, *, num_cpus: int, others: float) -> int:
    """others: CPUs that everybody else used on average. Of two, with 0.4 in use: 2; with 0.6 or 3 in use: 1; of eight
    with 2.2 in use, where four threads are most: 4."""
    return max(1, min(most, round(num_cpus - others)))


def _others(before: _Sample, after: _Sample) -> float:
    """CPUs that other programs used between two moments; 0.0 where the system does not tell."""
    if before.busy_s is None or after.busy_s is None:
        return 0.0
    work_s = after.busy_s - before.busy_s - (after.own_s - before.own_s)
    return max(0.0, work_s / (after.at_s - before.at_s))


class _Sample:
    """A moment's sums of CPU seconds: of all programs on the CPUs this process may use (None where unknown), and of
    this process."""

    def __init__(self) -> None:
        self.at_s = time.monotonic()
        own = os.times()
        self.own_s = own.user + own.system
        self.busy_s = _busy_s()


def _busy_s() -> float | None:
    try:
        lines = STAT.read_text().splitlines()
        allowed = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    except (OSError, AttributeError):
        return None
    rows = [line.split() for line in lines if line.startswith("cpu")]
    return sum(int(row[1 + place]) for row in rows if row[0] in allowed for place in _WORK) / _TICKS_PER_S
