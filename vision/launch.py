"""Starting the fork server as a program of its own. Owns its command and its environment; knows nothing of jobs."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Protocol

from vision.early import NICENESS

# Isolated (-I), with our own search path: neither the caller's main module nor its environment is read.
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from vision.forkserver import main; main(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])"
)
_KEPT_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "LANG", "TMPDIR")
# Huge pages for what malloc takes, and freed pictures kept for the next one: a fresh process would otherwise fault in
# every page of every picture anew, a fifth of the time of dense decoding. Another C library passes over this.
_MALLOC = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=268435456"
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class ServerProcess(Protocol):
    """The fork server, however it came to be."""

    @property
    def pid(self) -> int: ...

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it has ended within the time."""
        ...

    def kill(self) -> None: ...


class Launched:
    """A fork server started as a program."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def wait(self, timeout_s: float | None = None) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self._process.returncode is not None

    def kill(self) -> None:
        self._process.kill()


def launch(preload: tuple[str, ...]) -> tuple[socket.socket, Launched]:
    """Our end of its control socket, and it. preload: modules it imports where they can be."""
    root = str(Path(__file__).resolve().parent.parent)
    search_path = [root, *(entry for entry in sys.path if entry and entry != root)]
    environment = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
    environment |= {**_ONE_THREAD, "GLIBC_TUNABLES": _MALLOC}
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control = theirs.fileno()
    command = [sys.executable, "-I", "-c", _BOOT, json.dumps(search_path), str(control), str(NICENESS), *preload]
    with theirs:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment,
            pass_fds=(control,), start_new_session=True,
        )  # fmt: skip
    return ours, Launched(process)
