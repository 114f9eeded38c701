"""Tiny random checkpoints in hub layout, one recipe a family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.checkpoints.gemma3 import build_gemma3
from tests.checkpoints.internvl import build_internvl
from tests.checkpoints.llava_onevision import build_llava_onevision
from tests.checkpoints.paligemma import build_paligemma
from tests.checkpoints.qwen2_5_vl import build_qwen2_5_vl, build_qwen2_vl
from tests.checkpoints.qwen3_vl import build_qwen3_vl
from tests.checkpoints.smolvlm import build_smolvlm

BUILDERS: dict[str, Callable[[Path], None]] = {
    "gemma3": build_gemma3,
    "internvl": build_internvl,
    "llava_onevision": build_llava_onevision,
    "paligemma": build_paligemma,
    "qwen2_5_vl": build_qwen2_5_vl,
    "qwen2_vl": build_qwen2_vl,
    "qwen3_vl": build_qwen3_vl,
    "smolvlm": build_smolvlm,
}
