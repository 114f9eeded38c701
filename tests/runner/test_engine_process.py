"""The engine's process takes a step's buffers from what the last step freed, and not anew from the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

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

for _ in range(4):
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
