"""What a process and its descendants hold, read from /proc: children, descriptors, shared memory; and how to wait for
what a busy machine does when it likes. Knows nothing of servers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


def children_of(pid: int) -> set[int]:
    """All living descendants."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    found: set[int] = set()
    front = {pid}
    while front:
        front = {child for child, parent in parents.items() if parent in front} - found
        found |= front
    return found


def descriptors_of(pid: int) -> list[str]:
    folder = Path(f"/proc/{pid}/fd")
    names = []
    for entry in folder.iterdir():
        try:
            names.append(os.readlink(entry))
        except OSError:
            continue
    return sorted(names)


def threads_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def wait_until(condition: Callable[[], bool], *, timeout_s: float = 60.0, what: str = "the condition") -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true within {timeout_s} s"
        time.sleep(0.02)


def repeat_until(act: Callable[[], object], happened: Callable[[], bool], *, most: int = 20, what: str) -> None:
    """Do it once, and again until that happened which chance or the machine decides; not for ever."""
    for _ in range(most):
        act()
        if happened():
            return
    raise AssertionError(f"{what} did not happen in {most} rounds")
