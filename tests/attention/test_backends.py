"""Which backend is chosen, and the words when it cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attention.backends import choose_backend, make_backend
from attention.sdpa import SdpaBackend
from tests.attention.test_contract import layout_of

CPU = layout_of("cpu", torch.float32)
CUDA = replace(CPU, device=torch.device("cuda"), dtype=torch.bfloat16)


def test_without_cuda_it_is_sdpa() -> None:
    choice = choose_backend("auto", CPU)
    assert (choice.name, choice.reason) == ("sdpa", "it runs on CUDA, and the device is cpu")
    assert isinstance(make_backend(choice, CPU), SdpaBackend)
    with pytest.raises(ValueError, match="cannot be used: it runs on CUDA"):
        choose_backend("flashinfer", CPU)


def test_on_cuda_it_is_flashinfer_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert "not installed" in choose_backend("auto", CUDA).reason
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: object())
    assert choose_backend("auto", CUDA).name == "flashinfer"
    assert choose_backend("sdpa", CUDA).name == "sdpa"
    assert choose_backend("auto", replace(CUDA, dtype=torch.float32)).reason == "it keeps no keys in torch.float32"
    assert "80 numbers a head" in choose_backend("auto", replace(CUDA, head_dim=80)).reason
