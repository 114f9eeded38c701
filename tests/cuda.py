"""The one place that decides about tests that need CUDA: they are skipped with the reason, or fail where a card was
promised."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch


def need_cuda(*packages: str) -> None:
    """Skip unless there is a CUDA device and these packages are installed; FAIL_WITHOUT_CUDA=1 makes that a failure."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    reason = "no CUDA device" if not torch.cuda.is_available() else f"not installed: {missing}" if missing else None
    if reason is None:
        return
    if os.environ.get("FAIL_WITHOUT_CUDA") == "1":
        pytest.fail(f"{reason}, and FAIL_WITHOUT_CUDA=1 promises it")
    pytest.skip(reason)
