"""A fork server forked from a process that has only just begun: what both import is imported once, and shared.

Owns making the one early server of a process and handing it to the first pool. Knows nothing of jobs. Without it a
server is started as a program, which costs seconds of processor time and 400 MB with CUDA builds of torch.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from vision import forkserver
from vision.quick_imports import import_quickly

NICENESS = 5
POLL_S = 0.01
_early: list[EarlyServer] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyServer:
    """A child that serves on the other end of `control`; waited for and killed as a subprocess.Popen is."""

    control: socket.socket
    pid: int

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it has ended within the time; it is reaped then."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            try:
                if os.waitpid(self.pid, os.WNOHANG)[0]:
                    return True
            except ChildProcessError:
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def start_early(preload: tuple[str, ...]) -> None:
    """Import what decoding children need and fork their server off. To be called while this process has one thread,
    and before it has read anything secret but its environment: the server has all our memory."""
    import_quickly(*forkserver.PRELOAD)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            ours.close()
            _leave(theirs.fileno())
            forkserver.main(theirs.fileno(), NICENESS, list(preload))
            status = 0
        finally:
            os._exit(status)
    theirs.close()
    _early.append(EarlyServer(control=ours, pid=pid))


def take_early() -> EarlyServer | None:
    """The process's early server, the first time."""
    return _early.pop() if _early else None


def _leave(control_fd: int) -> None:
    """Become a process of our own: no session, descriptors or environment of the parent's."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    for entry in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if entry > 2 and entry != control_fd:
            try:
                os.close(entry)
            except OSError:
                continue  # the one that listed them
    _forget_environment()


def _forget_environment() -> None:
    """Overwrite it where the kernel put it, too: it may hold a user's keys."""
    libc = ctypes.CDLL(None)
    strings = ctypes.POINTER(ctypes.c_void_p).in_dll(libc, "environ")
    index = 0
    while strings[index]:
        ctypes.memset(strings[index], 0, len(ctypes.string_at(strings[index])))
        index += 1
    libc.clearenv()
    os.environ._data.clear()  # type: ignore[attr-defined]
