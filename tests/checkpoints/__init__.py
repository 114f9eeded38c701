"""Tiny random checkpoints in hub layout, one recipe a family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.checkpoints.qwen3_vl import build_qwen3_vl

BUILDERS: dict[str, Callable[[Path], None]] = {
    "qwen3_vl": build_qwen3_vl,
}
