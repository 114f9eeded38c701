"""A packed layer is the plain one but for rounding."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from runner.linear_forms import probe_forms
from runner.packed_linear import PackedLinear

needs_packing = pytest.mark.skipif("packed" not in probe_forms(), reason="torch has no packed products on this CPU")


def make_linear(*, bias: bool) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(48, 80, bias=bias, dtype=torch.bfloat16)


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
