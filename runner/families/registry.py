"""Which adapter serves which model type, and why. Owns the list; imports an adapter only when its model is loaded."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
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


GENERIC = "runner.families.generic_probe:generic_adapter"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterChoice:
    """adapter: where it is, None when the model cannot be served; why: said to people, either way."""

    adapter: str | None
    why: str


def choose_adapter(config: Any) -> AdapterChoice:
    """Which adapter a checkpoint gets. config: transformers' config of it."""
    kind: str = config.model_type
    if kind in ADAPTERS:
        return AdapterChoice(adapter=ADAPTERS[kind], why=f"{kind} has an adapter of its own")
    reason = importlib.import_module("runner.families.generic_traits").refusal_of(config)
    if reason is not None:
        return AdapterChoice(adapter=None, why=f"{kind} has no adapter, and the generic one cannot serve it: {reason}")
    why = f"{kind} has no adapter; by its config the generic one can serve it, which is tried out when it is loaded"
    return AdapterChoice(adapter=GENERIC, why=why)


def import_adapter(place: str) -> Callable[[Any, Any], Family]:
    """What makes a family: adapter(model, processor). place: "module:name"."""
    module, name = place.split(":")
    adapter: Callable[[Any, Any], Family] = getattr(importlib.import_module(module), name)
    return adapter
