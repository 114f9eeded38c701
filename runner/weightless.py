"""A model is made without memory before its weights are read. Owns what torch does at length for it and to no purpose:
numbers for weights that are read anyway, and arithmetic on ranges. Knows no models.

On the meta device torch computes both in Python, with the help of its compiler: two seconds of imports.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


def load_weights(kind: Any, folder: Path, **wanted: Any) -> Any:
    """A model of one of transformers' Auto classes; wanted: as its from_pretrained takes them, and what it raises."""
    try:
        with WeightlessInit():
            return kind.from_pretrained(folder, **wanted)
    except RuntimeError:  # a model that computes with ranges and weights at once
        return kind.from_pretrained(folder, **wanted)


class WeightlessInit(TorchFunctionMode):
    """While open, a weight on the meta device is not initialised, and a range is made on the CPU, and so is what is
    computed from it (frequencies, ids of positions)."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        wanted = kwargs or {}
        if func is torch.arange and _is_meta(wanted.get("device")):
            return torch.arange(*args, **{**wanted, "device": "cpu"})
        if getattr(func, "__module__", None) == torch.nn.init.__name__:
            weight = wanted.get("tensor", args[0] if args else None)
            if isinstance(weight, torch.Tensor) and weight.is_meta:
                return weight
        return func(*args, **wanted)


def _is_meta(device: Any) -> bool:
    return device is not None and torch.device(device).type == "meta"
