"""The process that decoding children are forked from: it has imported everything, runs one thread and does no work.

Started as a program by `vision.cage`; forks one child for each job, so that no state passes from one user's item to
the next. Knows nothing of decoding itself. It ends when the parent's end of the control socket closes.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import socket
import sys

from vision.quick_imports import import_quickly
from vision.seal import seal_process

PRELOAD = ("numpy", "av", "PIL.Image", "torch", "torchvision.transforms.v2.functional", "vision.child")
READY, READY_UNSEALED = b"ready", b"open!"  # of one length
JOB_FDS = 3
_PR_SET_PDEATHSIG = 1


def main(control_fd: int, niceness: int, preload: list[str]) -> None:
    """Import, say that we are ready, then fork a child for each job until the parent goes away."""
    os.nice(niceness)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The kernel reaps children by itself: the parent watches each through a pidfd of its own.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    control = socket.socket(fileno=control_fd)
    import_quickly(*PRELOAD)
    for name in preload:
        # A decoder that cannot be loaded is reported by the child that wants it.
        with contextlib.suppress(ImportError, OSError, RuntimeError):
            importlib.import_module(name)
    sys.modules["vision.child"].warm_up()
    is_sealed = seal_process()
    # Frozen objects stay out of the children's collector, and so stay shared pages.
    gc.collect()
    gc.freeze()
    try:
        control.sendall(READY if is_sealed else READY_UNSEALED)
    except BrokenPipeError:
        return  # the parent gave up while we were importing
    _serve(control)


def _serve(control: socket.socket) -> None:
    libc = ctypes.CDLL(None)
    server_pid = os.getpid()
    while True:
        message, fds, _, _ = socket.recv_fds(control, 16, JOB_FDS)
        if not message:
            return
        if len(fds) == JOB_FDS:
            _fork_child(control, fds, libc, server_pid)
        for fd in fds:
            os.close(fd)


def _fork_child(control: socket.socket, fds: list[int], libc: ctypes.CDLL, server_pid: int) -> None:
    try:
        child_pid = os.fork()
    except OSError:
        return  # the parent sees the job's socket close without an answer
    if child_pid:
        return
    status = 1
    try:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == server_pid:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            job_fd, input_fd, output_fd = fds
            sys.modules["vision.child"].run_job(job_fd, input_fd, output_fd)
            status = 0
    finally:
        os._exit(status)
