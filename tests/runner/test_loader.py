"""What cannot be loaded is said in words that tell what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from runner.config import EngineConfig
from runner.errors import EngineStartError
from runner.loader import find_checkpoint, load_model


def nothing(_phase: str, _done: int, _total: int) -> None:
    return None


def load(folder: Path, **settings):
    return load_model(EngineConfig(model=str(folder), served_name="m", **settings), nothing)


def test_a_folder_that_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(EngineStartError, match=r"config\.json"):
        find_checkpoint(str(tmp_path), None, nothing)


@pytest.mark.parametrize("name", ["no-such-folder", "./missing", "/missing/too", "a/b/c"])
def test_a_name_that_is_neither_folder_nor_hub_id(name: str) -> None:
    with pytest.raises(EngineStartError, match="neither a folder"):
        find_checkpoint(name, None, nothing)


def test_a_hub_id_without_a_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(EngineStartError, match="hf download owner/name"):
        find_checkpoint("owner/name", None, nothing)


def test_an_unknown_model_type_names_the_known(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(EngineStartError, match=r"'llama'.*qwen3_vl"):
        load(tmp_path)


def test_progress_is_told_and_weights_are_there_once(checkpoint: Callable[[str], Path]) -> None:
    seen: list[tuple[str, int, int]] = []
    config = EngineConfig(model=str(checkpoint("qwen3_vl")), served_name="m")
    loaded = load_model(config, lambda *progress: seen.append(progress))
    assert seen[-1][1] == seen[-1][2] > 0
    assert loaded.dtype == torch.float32
    assert loaded.weight_bytes == 4 * loaded.parameters


@pytest.mark.parametrize(("dtype", "expected"), [("bfloat16", torch.bfloat16), ("float32", torch.float32)])
def test_a_dtype_asked_for_is_used(checkpoint: Callable[[str], Path], dtype: str, expected: torch.dtype) -> None:
    loaded = load(checkpoint("qwen3_vl"), dtype=dtype)
    assert loaded.dtype == expected
    assert loaded.weight_bytes == expected.itemsize * loaded.parameters


def test_weights_that_are_missing_are_said(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    for file in checkpoint("qwen3_vl").iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(EngineStartError, match="cannot be loaded"):
        load(tmp_path)


def test_cuda_where_there_is_none_is_said(checkpoint: Callable[[str], Path]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(EngineStartError, match="--device cpu"):
        load(checkpoint("qwen3_vl"), device="cuda")
