"""The checkpoint of the benchmarks, by the same recipe and small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.checkpoint import TEXT, VISION, write_checkpoint

TINY_TEXT: dict[str, Any] = {
    **TEXT, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "rope_parameters": {**TEXT["rope_parameters"], "mrope_section": [2, 3, 3]}, "vocab_size": 600,
}  # fmt: skip
TINY_VISION: dict[str, Any] = {
    **VISION, "depth": 3, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48, "out_hidden_size": 64,
}  # fmt: skip


def write_tiny_load(folder: Path) -> None:
    write_checkpoint(folder, text=TINY_TEXT, vision=TINY_VISION)
