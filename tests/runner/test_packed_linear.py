"""A packed layer is the plain one but for rounding; only bfloat16 on a CPU is packed, and only where it pays."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from runner import packed_linear
from runner.packed_linear import PROBES, PackedLinear, pack_linears, packing_pays, probe_packing

needs_packing = pytest.mark.skipif(not probe_packing(), reason="torch has no packed products on this CPU")


def make_linear(*, bias: bool, dtype: torch.dtype = torch.bfloat16) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(48, 80, bias=bias, dtype=dtype)


@needs_packing
@torch.inference_mode()
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 3, 40, 300])
def test_packed_equals_plain(rows: int, bias: bool) -> None:
    """Within the rounding of one bfloat16 result, of float64 products."""
    plain = make_linear(bias=bias)
    packed = PackedLinear(plain)
    x = torch.randn(rows, 48).bfloat16()
    exact = F.linear(x.double(), plain.weight.double(), None if plain.bias is None else plain.bias.double())
    ours = packed(x)
    assert ours.shape == exact.shape and ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours.double(), exact, rtol=2**-8, atol=2**-9)
    torch.testing.assert_close(packed.silu(x).double(), F.silu(exact), rtol=2**-8, atol=2**-9)


@needs_packing
def test_packing_swaps_bfloat16_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_linear, "packing_pays", lambda: True)
    shared = nn.Embedding(80, 48, dtype=torch.bfloat16)
    tied = nn.Linear(48, 80, bias=False, dtype=torch.bfloat16)
    tied.weight = shared.weight
    model = nn.ModuleDict(
        {
            "low": make_linear(bias=True),
            "full": make_linear(bias=True, dtype=torch.float32),
            "deep": nn.Sequential(nn.LayerNorm(4), make_linear(bias=False)),
            "embedding": shared,
            "head": tied,
        }
    )
    threads = torch.get_num_threads()
    assert pack_linears(model) == 3
    assert torch.get_num_threads() == threads
    assert isinstance(model["low"], PackedLinear) and isinstance(model["head"], PackedLinear)
    assert isinstance(model["full"], nn.Linear)
    assert model["embedding"].weight.shape == (80, 48)
    assert pack_linears(model) == 0


def test_what_does_not_pay_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_linear, "packing_pays", lambda: False)
    model = nn.Sequential(make_linear(bias=True))
    assert pack_linears(model) == 0
    assert isinstance(model[0], nn.Linear)


@pytest.mark.parametrize(("ratios", "pays"), [({1: 0.5, 512: 1.2}, True), ({1: 1.1, 512: 1.0}, False), ({}, False)])
def test_packing_pays_on_the_whole(monkeypatch: pytest.MonkeyPatch, ratios: dict[int, float], pays: bool) -> None:
    monkeypatch.setattr(packed_linear, "probe_packing", lambda: ratios)
    packing_pays.cache_clear()
    assert packing_pays() is pays
    packing_pays.cache_clear()


@needs_packing
def test_the_probe_measures_decode_and_prefill() -> None:
    assert list(probe_packing()) == [rows for rows, _ in PROBES]


def test_missing_operators_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: nn.Linear) -> PackedLinear:
        raise NotImplementedError("no such operator here")

    monkeypatch.setattr(packed_linear, "PackedLinear", missing)
    assert probe_packing() == {}
