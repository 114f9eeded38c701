"""What a measurement must say of the machine: who else used it, how much memory the measured processes held, what it
is. Reads /proc; knows no engines."""

from __future__ import annotations

import os
import platform
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
QUIET_CORES = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One row of /proc: CPU seconds are its own and those of children it has waited for."""

    pid: int
    parent: int
    cpu_s: float


def read_processes() -> dict[int, Process]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            cpu_s = sum(map(int, fields[11:15])) / TICKS_PER_S
            pid = int(entry.name)
            found[pid] = Process(pid=pid, parent=int(fields[1]), cpu_s=cpu_s)
    return found


def tree_of(root: int, processes: dict[int, Process]) -> list[Process]:
    """The process and its living descendants."""
    tree = [processes[root]] if root in processes else []
    for parent in tree:
        tree.extend(p for p in processes.values() if p.parent == parent.pid)
    return tree


def resident_bytes(pid: int) -> int:
    """Its share of memory: a page that n processes map counts for 1 / n."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def busy_s() -> float:
    """CPU seconds since boot that all cores spent on something."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_S


class Watch:
    """While open, follows this process and all it starts. `others`: cores that everybody else used on average;
    `peak_memory_bytes`: resident in what this process has started, pages that several share counted once."""

    def __init__(self, *, every_s: float = 2.0) -> None:
        self._every_s = every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self.peak_memory_bytes = 0
        self.others = 0.0

    def __enter__(self) -> Self:
        self._started, self._busy_s, self._own_s = time.monotonic(), busy_s(), own_cpu_s()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        elapsed = time.monotonic() - self._started
        self.others = max(0.0, busy_s() - self._busy_s - (own_cpu_s() - self._own_s)) / elapsed

    def _follow(self) -> None:
        while not self._ended.is_set():
            own = tree_of(os.getpid(), read_processes())
            self.peak_memory_bytes = max(self.peak_memory_bytes, sum(resident_bytes(p.pid) for p in own[1:]))
            self._ended.wait(self._every_s)


def own_cpu_s() -> float:
    return sum(p.cpu_s for p in tree_of(os.getpid(), read_processes()))


def wait_until_quiet(timeout_s: float, *, sample_s: float = 3.0) -> float:
    """Wait until everybody else uses less than QUIET_CORES; returns what they used last."""
    deadline = time.monotonic() + timeout_s
    while True:
        with Watch() as watch:
            time.sleep(sample_s)
        if watch.others < QUIET_CORES or time.monotonic() > deadline:
            return watch.others
        print(f"waiting for a quiet machine: others use {watch.others:.2f} cores", flush=True)


def describe_machine() -> dict[str, object]:
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    flags = Path("/proc/cpuinfo").read_text().split()
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES / 2**30, 1),
        "features": [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags],
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }
