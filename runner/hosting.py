"""Where an engine runs: a process of its own, or a thread of this one. Owns its start and end, not what it says.

Imports nothing heavy: the engine's own modules are named, and imported at the other end.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import subprocess
import sys
import threading
from typing import Protocol

import msgspec

from runner.config import EngineConfig

SOCKET_BUFFER_BYTES = 4 << 20
# For the engine's process; what the user's environment says stands. Weights are read a tenth faster from huge pages,
# which glibc asks for when told to. numpy's own threads, which nothing here needs, would be there before decoding's
# server is forked off. Compiled products are kept, 0.26 MB each, 1024 unless told otherwise: with few numbers of rows
# (runner/row_ladder.py) so many are in use at a time.
COMPUTE_ENVIRONMENT = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256",
    "OPENBLAS_NUM_THREADS": "1",
}


class EngineHandle(Protocol):
    """The other end's life; `pid` is the process it runs in."""

    @property
    def pid(self) -> int: ...
    def is_alive(self) -> bool: ...
    def join(self, timeout_s: float) -> None: ...
    def kill(self) -> None: ...


class EngineProcess:
    """An engine as a child process: it ends when it is told to, or when our end of its socket closes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def join(self, timeout_s: float) -> None:
        self._process.wait(timeout_s)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class EngineThread:
    """An engine as a thread: `kill` closes its socket, which ends it at its next step."""

    def __init__(self, thread: threading.Thread, theirs: socket.socket) -> None:
        self._thread = thread
        self._theirs = theirs

    @property
    def pid(self) -> int:
        return os.getpid()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def kill(self) -> None:
        with contextlib.suppress(OSError):  # it may have ended by itself
            self._theirs.shutdown(socket.SHUT_RDWR)


def start_engine_process(config: EngineConfig) -> tuple[socket.socket, EngineProcess]:
    """Start `python -m runner.engine_process`; the settings go in as JSON on its standard input."""
    ours, theirs = _socket_pair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "runner.engine_process", str(theirs.fileno())],
            stdin=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
            env={**COMPUTE_ENVIRONMENT, **os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(config))
    process.stdin.close()
    return ours, EngineProcess(process)


def start_engine_thread(config: EngineConfig) -> tuple[socket.socket, EngineThread]:
    """Run the engine in this process. Its module is imported here so that import errors surface at once."""
    ours, theirs = _socket_pair()
    serve = importlib.import_module("runner.service").serve
    thread = threading.Thread(target=serve, args=(theirs, config), name="evs-engine", daemon=True)
    thread.start()
    return ours, EngineThread(thread, theirs)


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    return ours, theirs
