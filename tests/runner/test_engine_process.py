"""The engine's process takes a step's buffers from what the last step freed, and its memory is in huge pages."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from runner import hosting, spawning
from runner.config import EngineConfig

SCRIPT = """
import resource, sys
import torch
from runner.engine_process import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def step():
    torch.zeros(48 << 20, dtype=torch.uint8)

for _ in range(24):  # aligned blocks leave slivers behind: the heap settles within a dozen, a few blocks larger
    step()
before = faults()
for _ in range(5):
    step()
print(faults() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's mallopt")
def test_freed_memory_is_kept() -> None:
    def faults(how: str) -> int:
        command = [sys.executable, "-c", SCRIPT, how]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    kept = faults("keep")
    if faults("leave") < 5000:
        pytest.skip("this C library, or its huge pages, keeps freed memory anyway")
    assert kept < 1000


def test_huge_pages_are_asked_for_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's process gets the setting, and a user's own stands over it."""
    environments: list[dict[str, str]] = []

    class Started:
        stdin = io.BytesIO()

        def __init__(self, _command: list[str], *, env: dict[str, str], **_: object) -> None:
            environments.append(env)

    monkeypatch.setattr(spawning.subprocess, "Popen", Started)
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    for own in (None, "glibc.malloc.check=1"):
        if own is not None:
            monkeypatch.setenv("GLIBC_TUNABLES", own)
        Started.stdin = io.BytesIO()
        ours, _ = hosting.start_engine_process(EngineConfig(model="m", served_name="m"))
        ours.close()
    assert [env["GLIBC_TUNABLES"] for env in environments] == ["glibc.malloc.hugetlb=1", "glibc.malloc.check=1"]
