"""Where an engine runs: a process of its own, or a thread of this one. Owns its start and end, not what it says.

Imports nothing heavy: the engine's own modules are named, and imported at the other end.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import subprocess
import threading
from typing import Protocol

import msgspec

from runner.config import EngineConfig
from runner.spawning import socket_pair, take_spawned


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
    """Start the engine's program, or take the one that was begun early; the settings go in as JSON."""
    spawned = take_spawned()
    assert spawned.process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended, which its socket tells, too
        spawned.process.stdin.write(msgspec.json.encode(config))
        spawned.process.stdin.close()
    return spawned.ours, EngineProcess(spawned.process)


def start_engine_thread(config: EngineConfig) -> tuple[socket.socket, EngineThread]:
    """Run the engine in this process. Its module is imported here so that import errors surface at once."""
    ours, theirs = socket_pair()
    serve = importlib.import_module("runner.service").serve
    thread = threading.Thread(target=serve, args=(theirs, config), name="evs-engine", daemon=True)
    thread.start()
    return ours, EngineThread(thread, theirs)
