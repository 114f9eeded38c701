"""The engine's process, begun: `python -m runner.engine_process`, which imports what it needs and awaits its settings
on standard input. Owns its command and its environment, not what becomes of it.

Imports the standard library only, so that the process can begin before whoever wants it has imported anything.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawned:
    """A process whose standard input is a pipe, and our end of its socket."""

    ours: socket.socket
    process: subprocess.Popen[bytes]


_early: list[Spawned] = []


def spawn() -> Spawned:
    ours, theirs = socket_pair()
    with theirs:
        process = subprocess.Popen(
            # -P: what lies in the working directory (a runner.py, a queue.py) must not stand in for modules
            [sys.executable, "-P", "-m", "runner.engine_process", str(theirs.fileno())],
            stdin=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
            env={
                **COMPUTE_ENVIRONMENT,
                **os.environ,
                "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
            },
        )
    return Spawned(ours=ours, process=process)


def spawn_early() -> None:
    """Begin the process that `take_spawned` gives first. Where nobody takes it, it ends with us."""
    _early.append(spawn())


def take_spawned() -> Spawned:
    return _early.pop() if _early else spawn()


def socket_pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    return ours, theirs
