"""The parent's side of the fork server: start it, hand it jobs, watch each child, kill it when its time is up.

Knows nothing of media: a job is something to pickle, an answer is bytes. Linux only (memfd, pidfd).
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import select
import signal
import socket
import threading
import time
from dataclasses import dataclass
from functools import cache
from typing import NoReturn

from vision.early import take_early
from vision.errors import DecodeCancelledError, DecodeCrashedError, DecodeDeadlineError
from vision.forkserver import READY, READY_UNSEALED
from vision.launch import ServerProcess, launch
from vision.request import HELLO, Job
from vision.stream_protocol import StreamJob

log = logging.getLogger("evserve.vision")

START_TIMEOUT_S = 120.0
POLL_S = 0.05
FORK_TIMEOUT_S = 10.0
EXIT_WAIT_S = 2.0
MAX_ANSWER_BYTES = 16 << 20


class ServerLostError(Exception):
    """The fork server is gone; a new one may be started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Reasons to stop waiting for a job, other than time."""

    cancel: threading.Event | None
    closed: threading.Event

    def check(self) -> None:
        """Raise DecodeCancelledError when nobody waits any more."""
        if self.closed.is_set():
            raise DecodeCancelledError("decoding was cancelled: the server is stopping")
        if self.cancel is not None and self.cancel.is_set():
            raise DecodeCancelledError("decoding was cancelled")


class ForkServer:
    """Runs jobs in children of a small single-threaded process; starts a new one if it dies."""

    def __init__(self, preload: tuple[str, ...] = ()) -> None:
        """preload: modules the server imports, where they can be, so that its children need not."""
        self._lock = threading.Lock()
        self._preload = preload
        early = take_early()
        self._process = _Server(*launch(preload)) if early is None else _Server(early.control, early)

    def run(self, job: Job, input_fd: int, output_fd: int, watch: Watch) -> bytes:
        """The child's whole answer; empty if it died without one.

        Raises DecodeDeadlineError and DecodeCancelledError after killing the child.
        """
        child = self.start(job, input_fd, output_fd, watch)
        if child is None:
            return b""
        with child:
            try:
                return child.read_answer(time.monotonic() + job.limits.decode_timeout_s, watch)
            except TimeoutError:
                raise DecodeDeadlineError(
                    f"decoding took longer than the limit of {job.limits.decode_timeout_s:g} s; send a shorter or "
                    "smaller clip"
                ) from None

    def start(self, job: Job | StreamJob, input_fd: int, output_fd: int, watch: Watch) -> Child | None:
        """A child with its job, to be ended by the caller; None if it died before it took the job."""
        payload = pickle.dumps(job)
        for attempt in (1, 2):
            server = self._current()
            try:
                server.wait_ready(watch)
                channel = server.fork(input_fd, output_fd)
                break
            except ServerLostError as error:
                if attempt == 2:
                    raise DecodeCrashedError("the media could not be decoded: no decoding process starts") from error
        pidfd = _receive_pidfd(channel)
        if pidfd is None:
            server.lost.set()
            channel.close()
            return None
        child = Child(channel, pidfd)
        try:
            _send_job(channel, payload, job.limits.decode_timeout_s)
        except BaseException:
            child.end()
            raise
        return child

    @property
    def is_sealed(self) -> bool | None:
        """Whether children can open no sockets and start no programs; None until the server is ready."""
        return self._process.is_sealed

    def close(self) -> None:
        with self._lock:
            self._process.stop()

    def _current(self) -> _Server:
        with self._lock:
            if self._process.lost.is_set():
                self._process.stop()
                self._process = _Server(*launch(self._preload))
            return self._process


class _Server:
    """One fork server process and the socket that jobs are handed over by."""

    def __init__(self, control: socket.socket, process: ServerProcess) -> None:
        self.lost = threading.Event()
        self.is_sealed: bool | None = None
        self._ready = threading.Event()
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._control, self._process = control, process

    def wait_ready(self, watch: Watch) -> None:
        """Block until the server has imported what children need. Raises ServerLostError."""
        while not self._ready.is_set():
            watch.check()
            with self._lock:
                if self._ready.is_set():
                    return
                if _is_readable(self._control.fileno(), POLL_S):
                    self._read_ready()
                elif time.monotonic() - self._started > START_TIMEOUT_S:
                    self._give_up("it did not get ready in time")

    def fork(self, input_fd: int, output_fd: int) -> socket.socket:
        """Have a child forked; the socket to it. Raises ServerLostError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            try:
                with self._lock:
                    socket.send_fds(self._control, [b"job"], [theirs.fileno(), input_fd, output_fd])
            except OSError as error:
                ours.close()
                self._give_up(str(error))
        return ours

    def stop(self) -> None:
        """End the process: it leaves when its control socket closes, and its children die with it."""
        with self._lock:
            self._control.close()
            if not self._process.wait(EXIT_WAIT_S if self._ready.is_set() else 0.0):
                self._process.kill()
                self._process.wait()

    def _read_ready(self) -> None:
        try:
            answer = self._control.recv(len(READY))
        except OSError as error:
            self._give_up(str(error))
        if answer not in (READY, READY_UNSEALED):
            self._give_up("it ended while starting")
        self.is_sealed = answer == READY
        if not self.is_sealed:
            _warn_unsealed()
        self._ready.set()

    def _give_up(self, reason: str) -> NoReturn:
        self.lost.set()
        raise ServerLostError(reason)


@cache
def _warn_unsealed() -> None:
    """Once a process, however often the fork server starts."""
    log.warning(
        "the kernel takes no seccomp filter: decoding children could open sockets; their other limits hold (evs doctor)"
    )


class Child:
    """A child at work. Leaving its block ends it, killed if need be."""

    def __init__(self, channel: socket.socket, pidfd: int) -> None:
        self.channel = channel
        self._pidfd = pidfd

    def read_answer(self, deadline: float, watch: Watch) -> bytes:
        """All bytes until the child closes its end; empty when it died. Raises TimeoutError at the deadline."""
        return _receive_answer(self.channel, deadline, watch)

    def end(self) -> None:
        """Leaves no child. Must be called once."""
        _end(self._pidfd)
        os.close(self._pidfd)
        self.channel.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def _receive_pidfd(channel: socket.socket) -> int | None:
    """The child's first byte brings a handle to it. It comes before the child reads anything, so it is not timed by
    the item's deadline, and a child can always be killed by the time there is reason to."""
    if not _is_readable(channel.fileno(), FORK_TIMEOUT_S):
        return None
    with contextlib.suppress(OSError):
        _, fds, _, _ = socket.recv_fds(channel, len(HELLO), 1, socket.MSG_CMSG_CLOEXEC)
        if fds:
            return fds[0]
    return None


def _send_job(channel: socket.socket, job: bytes, timeout_s: float) -> None:
    channel.settimeout(timeout_s)
    # A child that died already is found by its missing answer.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        channel.sendall(job)
        channel.shutdown(socket.SHUT_WR)


def _receive_answer(channel: socket.socket, deadline: float, watch: Watch) -> bytes:
    """All bytes until the child closes its end; empty when it died. Raises TimeoutError at the deadline."""
    answer = bytearray()
    while len(answer) <= MAX_ANSWER_BYTES:
        watch.check()
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if not _is_readable(channel.fileno(), min(left, POLL_S)):
            continue
        try:
            part = channel.recv(1 << 16)
        except ConnectionResetError:
            return b""
        if not part:
            return bytes(answer)
        answer += part
    return b""


def _end(pidfd: int) -> None:
    """Return when the child is gone: by itself if it has just answered, killed otherwise."""
    if not _is_readable(pidfd, 0):
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        _is_readable(pidfd, EXIT_WAIT_S)


def _is_readable(fd: int, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))
