"""A server forked early serves as one that was started does, shares what was imported, and knows no keys."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.clips import make_clip

SECRET = "sk-of-the-user"
SCRIPT = """
import json, os, signal, sys, time
from pathlib import Path
from vision.early import start_early
os.environ["SET_LATER"] = "sk-of-the-user"
start_early(("vision.backends.pyav",))
tasks = len(os.listdir("/proc/self/task"))
from vision.cage import DecodePool
from vision.request import DecodeRequest, MediaFile
from vision.resize import FixedSize
request = DecodeRequest(kind="video", resize=FixedSize(height=8, width=8))
with DecodePool(workers=1) as pool:
    frames = [len(pool.decode(MediaFile(path=sys.argv[1]), request).pixels)]
    first = pool.server._process
    pid = first._process.pid
    memory = Path(f"/proc/{pid}/environ").read_bytes()
    shared = int(next(l for l in open(f"/proc/{pid}/smaps_rollup") if l.startswith("Shared_Dirty")).split()[1])
    fds = sorted(os.readlink(f"/proc/{pid}/fd/{fd}").split(":")[0] for fd in os.listdir(f"/proc/{pid}/fd"))
    os.kill(pid, signal.SIGKILL)
    while first._process.wait(0.0) is False:
        time.sleep(0.01)
    frames.append(len(pool.decode(MediaFile(path=sys.argv[1]), request).pixels))
    second = pool.server._process
print(json.dumps({"tasks": tasks, "frames": frames, "memory": memory.hex(), "shared_kib": shared, "fds": fds,
                  "new": second is not first, "alive": os.path.exists(f"/proc/{second._process.pid}")}))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    clip = tmp_path_factory.mktemp("early") / "clip.mp4"
    make_clip(clip)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(clip)],
        env={**os.environ, "API_KEY": SECRET, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=Path(__file__).parents[2], check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def test_it_decodes_and_is_replaced_when_it_dies(told: dict[str, Any]) -> None:
    assert told["frames"][0] == told["frames"][1] > 0
    assert told["new"]
    assert not told["alive"]  # closing the pool ended the second one


def test_it_is_forked_from_one_thread_and_shares_memory(told: dict[str, Any]) -> None:
    assert told["tasks"] == 1
    assert told["shared_kib"] > 50_000


def test_it_keeps_no_environment_and_no_descriptor(told: dict[str, Any]) -> None:
    """The first three are the null device and what errors go to."""
    assert SECRET.encode() not in bytes.fromhex(told["memory"])
    assert "socket" in told["fds"]
    assert len(told["fds"]) == 4, told["fds"]
