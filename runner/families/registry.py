"""Which adapter serves which model type. Owns the list; imports an adapter only when its model is loaded."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from runner.families.base import Family

ADAPTERS: dict[str, str] = {
    "gemma3": "runner.families.gemma3:Gemma3",
    "internvl": "runner.families.internvl:InternVL",
    "llava_onevision": "runner.families.llava_onevision:LlavaOneVision",
    "paligemma": "runner.families.paligemma:PaliGemma",
    "qwen2_5_vl": "runner.families.qwen2_5_vl:Qwen25VL",
    "qwen2_vl": "runner.families.qwen2_5_vl:Qwen2VL",
    "qwen3_vl": "runner.families.qwen3_vl:Qwen3VL",
    "smolvlm": "runner.families.smolvlm:SmolVLM",
}


def adapter_of(model_type: str) -> Callable[[Any, Any], Family]:
    """The adapter class for a config's model_type: adapter(model, processor). Raises KeyError for an unknown one."""
    module, name = ADAPTERS[model_type].split(":")
    adapter: Callable[[Any, Any], Family] = getattr(importlib.import_module(module), name)
    return adapter
