"""A layer that multiplies columns is the plain one but for rounding, at any number of rows, and shares its weight."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from runner import column_linear
from runner.column_linear import MOST_COLUMNS, ColumnLinear, multiplies_columns
from runner.families.fused import gated_mlp

ROWS = [1, 2, 33, MOST_COLUMNS, MOST_COLUMNS + 1]


def make_linear(inputs: int, outputs: int, *, bias: bool) -> nn.Linear:
    torch.manual_seed(inputs)
    return nn.Linear(inputs, outputs, bias=bias, dtype=torch.bfloat16)


@torch.inference_mode()
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", ROWS)
def test_columns_equal_plain(rows: int, bias: bool) -> None:
    """Within the rounding of a result and of the bias that is added to it, of float64 products; rows may be any, also
    some of a wider tensor's."""
    plain = make_linear(48, 80, bias=bias)
    ours = ColumnLinear(plain)
    x = torch.randn(rows, 60).bfloat16()[:, 5:53]
    exact = F.linear(x.double(), plain.weight.double(), None if plain.bias is None else plain.bias.double())
    assert ours.weight is plain.weight
    found = ours(x)
    assert found.shape == exact.shape and found.dtype == torch.bfloat16 and found.is_contiguous()
    torch.testing.assert_close(found.double(), exact, rtol=2**-7, atol=2**-8)
    torch.testing.assert_close(ours.silu(x).double(), F.silu(exact), rtol=2**-7, atol=2**-8)


@torch.inference_mode()
def test_silu_where_the_cpu_has_no_fused_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old CPUs, whose probe may well choose columns."""
    monkeypatch.setattr(column_linear, "can_multiply", lambda: False)
    monkeypatch.delattr(column_linear, "multiply")
    plain = make_linear(48, 80, bias=True)
    x = torch.randn(MOST_COLUMNS + 1, 48).bfloat16()
    assert torch.equal(ColumnLinear(plain).silu(x), F.silu(plain(x)))


@torch.inference_mode()
def test_deeper_tensors_are_multiplied_as_ever() -> None:
    plain = make_linear(48, 80, bias=True)
    x = torch.randn(2, 3, 48).bfloat16()
    assert torch.equal(ColumnLinear(plain)(x), plain(x))


@torch.inference_mode()
@pytest.mark.parametrize("rows", ROWS)
def test_a_gated_mlp_of_columns_equals_plain(rows: int) -> None:
    """Chained as columns or not, within the roundings of its three products."""
    gate, up, down = make_linear(48, 80, bias=True), make_linear(48, 80, bias=False), make_linear(80, 48, bias=True)
    x = torch.randn(rows, 48).bfloat16()
    double = [nn.Linear(layer.in_features, layer.out_features, bias=True).double() for layer in (gate, up, down)]
    for layer, wide in zip((gate, up, down), double, strict=True):
        wide.weight.copy_(layer.weight)
        wide.bias.zero_() if layer.bias is None else wide.bias.copy_(layer.bias)
    exact = double[2](F.silu(double[0](x.double())) * double[1](x.double()))
    ours = [ColumnLinear(layer) for layer in (gate, up, down)]
    assert multiplies_columns(*ours, rows=rows) is (1 < rows <= MOST_COLUMNS)
    torch.testing.assert_close(gated_mlp(ours[0], ours[1], ours[2], x).double(), exact, rtol=2**-6, atol=2**-6)


def test_plain_layers_are_not_chained() -> None:
    plain = make_linear(48, 80, bias=False)
    assert not multiplies_columns(ColumnLinear(plain), plain, rows=4)
