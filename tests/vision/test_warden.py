"""The fork server: one thread, a clean environment, replaced when it dies, gone when its parent is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clips import make_clip
from tests.vision.fakes import SameSize
from tests.vision.test_cage import children_of, server_pid, wait_until
from vision.cage import DecodePool
from vision.request import DecodeRequest, MediaBytes

CLIP = make_clip(frames=3)
REQUEST = DecodeRequest(kind="video", resize=SameSize())

# A program with a main module that must not run twice, and a child that never ends by itself.
PROGRAM = """
import sys, threading
sys.path.insert(0, {root!r})
print("main", flush=True)
from tests.vision.fakes import Stuck
from vision.cage import DecodePool
from vision.request import DecodeRequest, MediaBytes
pool = DecodePool()
data = sys.stdin.buffer.read()
print(pool._server._process._process.pid, flush=True)
pool.decode(MediaBytes(data=data), DecodeRequest(kind="video", resize=Stuck()))
"""


def test_the_server_has_one_thread_and_no_secrets(pool: DecodePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is forked must be single-threaded; what decodes strangers' files must not know our keys."""
    pool.decode(MediaBytes(data=CLIP), REQUEST)
    pid = server_pid(pool)
    assert len(os.listdir(f"/proc/{pid}/task")) == 1
    names = {entry.split("=")[0] for entry in Path(f"/proc/{pid}/environ").read_text().split("\0") if entry}
    tunables = {"GLIBC_TUNABLES", "glibc.malloc.mmap_threshold", "glibc.malloc.trim_threshold"}  # glibc cuts it up
    assert names <= {
        "PATH", "LD_LIBRARY_PATH", "LANG", "TMPDIR",
        "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", *tunables,
    }  # fmt: skip


def test_a_server_that_dies_is_replaced() -> None:
    with DecodePool(workers=1) as pool:
        pool.decode(MediaBytes(data=CLIP), REQUEST)
        first = server_pid(pool)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: Path(f"/proc/{first}/stat").read_text().split()[2] == "Z")
        assert len(pool.decode(MediaBytes(data=CLIP), REQUEST).pixels) == 3
        assert server_pid(pool) != first


def test_all_end_with_the_parent(tmp_path: Path) -> None:
    """A parent that is killed leaves neither the server nor its children; its main module ran once."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(root=str(Path(__file__).parents[2])))
    with subprocess.Popen([sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdin.write(CLIP)
        parent.stdin.close()
        assert parent.stdout.readline() == b"main\n"
        server = int(parent.stdout.readline())
        wait_until(lambda: len(children_of(server)) == 1)
        child = children_of(server)[0]
        parent.kill()
        wait_until(lambda: not _runs(server) and not _runs(child))
        assert parent.stdout.read() == b""


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
