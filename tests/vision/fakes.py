"""Resize policies that misbehave inside the decoding process, so that tests can make it hang, crash or grow.

They are found by name in the child, as any family's policy is. Each says on `pipe` that it was reached.
"""

from __future__ import annotations

import os
import signal
import socket
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SameSize:
    """No resize."""

    def target_size(self, num_frames: int, height: int, width: int) -> tuple[int, int]:
        return height, width


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """Makes the child wait for a signal that never comes."""

    def target_size(self, num_frames: int, height: int, width: int) -> tuple[int, int]:
        signal.pause()
        raise AssertionError("nothing wakes it but a kill")


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashing:
    """Ends the child as a native decoder's fault would."""

    number: int = signal.SIGSEGV

    def target_size(self, num_frames: int, height: int, width: int) -> tuple[int, int]:
        os.kill(os.getpid(), self.number)
        raise AssertionError("unreachable")


@dataclass(frozen=True, slots=True, kw_only=True)
class Greedy:
    """Takes more memory than any limit allows."""

    def target_size(self, num_frames: int, height: int, width: int) -> tuple[int, int]:
        return len(bytearray(8 << 30)), 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Huge:
    """Asks for frames that are larger than what a child may return."""

    def target_size(self, num_frames: int, height: int, width: int) -> tuple[int, int]:
        return 1 << 16, 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Faulty:
    """Our own bug."""

    def target_size(self, num_frames: int, height: int, width: int) -> tuple[int, int]:
        raise ZeroDivisionError("/secret/path leaks in a traceback")


@dataclass(frozen=True, slots=True, kw_only=True)
class Escaping:
    """Tries what a taken-over decoder would, inside the child; its size says what was refused."""

    def target_size(self, num_frames: int, height: int, width: int) -> tuple[int, int]:
        refused = 1
        for attempt in (self._dial, self._run):
            try:
                attempt()
            except PermissionError:
                refused += 1
        return refused, 1

    def _dial(self) -> None:
        socket.create_connection(("127.0.0.1", 9))

    def _run(self) -> None:
        os.execv("/bin/true", ["true"])
