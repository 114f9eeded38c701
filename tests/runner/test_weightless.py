"""A model made the short way is the one that transformers makes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText

from runner.weightless import WeightlessInit, load_weights


def tensors_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@pytest.mark.parametrize("family", ["gemma3", "qwen2_5_vl"])
def test_every_weight_and_buffer_is_the_same(checkpoint: Callable[[str], Path], family: str) -> None:
    wanted = {"dtype": torch.float32, "use_safetensors": True}
    ours = tensors_of(load_weights(AutoModelForImageTextToText, checkpoint(family), **wanted))
    theirs = tensors_of(AutoModelForImageTextToText.from_pretrained(checkpoint(family), **wanted))
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].device == tensor.device and ours[name].dtype == tensor.dtype
        assert torch.equal(ours[name], tensor), name


def test_only_what_has_no_memory_is_left_alone() -> None:
    with WeightlessInit():
        real = torch.nn.init.ones_(torch.zeros(3))
        meta = torch.nn.Linear(2, 2, device="meta")
        with torch.device("meta"):
            assert torch.arange(0, 6, 2).tolist() == [0, 2, 4]
    assert real.tolist() == [1.0, 1.0, 1.0] and meta.weight.is_meta
    assert torch.arange(3, device="meta").is_meta


def test_a_model_that_computes_with_ranges_and_weights_is_made_the_long_way(tmp_path: Path) -> None:
    class Mixing:
        @staticmethod
        def from_pretrained(_folder: Path, **_: Any) -> torch.Tensor:
            with torch.device("meta"):
                return torch.outer(torch.arange(3.0), torch.empty(3))

    assert load_weights(Mixing, tmp_path).is_meta
