"""A linear layer whose weight lies in memory as the CPU's matrix kernels read it. Owns the private operators behind
that; knows no model, and not whether it pays (runner/linear_forms.py).

One copy of a weight is kept: the original is dropped, except where an embedding table shares it. Where our own products
(runner/products.py) can read that copy, they compute with it.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from runner.products import Then, packed_products

# Kernels arrange a weight for a number of rows; what is arranged for many is no slower for few, and not the reverse.
PACKED_FOR_ROWS = 1024


class PackedLinear(nn.Module):
    """Stands in for an nn.Linear; has no `weight`."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.data, PACKED_FOR_ROWS)
        self.products = packed_products(self.packed, linear.weight.data)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ours = self._multiply(x, Then.NOTHING)
        return multiply(x, self.packed, self.bias, "none") if ours is None else ours

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        """F.silu of the product, rounded once."""
        ours = self._multiply(x, Then.SILU)
        return multiply(x, self.packed, self.bias, "swish") if ours is None else ours

    def times(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """The product, times other (..., N)."""
        ours = self._multiply(x, Then.TIMES, other)
        return multiply(x, self.packed, self.bias, "none").mul_(other) if ours is None else ours

    def plus(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """The product, plus other (..., N)."""
        ours = self._multiply(x, Then.PLUS, other)
        return multiply(x, self.packed, self.bias, "none").add_(other) if ours is None else ours

    def _multiply(self, x: torch.Tensor, then: Then, other: torch.Tensor | None = None) -> torch.Tensor | None:
        if self.products is None or not self.products.take(x.numel() // self.in_features):
            return None
        return self.products.multiply(x, self.bias, then, other)


def multiply(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, then: str) -> torch.Tensor:
    """The product and a function of it alone in one operator ("none" or "swish"; a second operand makes the kernel up
    to twice as slow, see bench/README.md); weight: packed, or as it is."""
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, then, [], "")
    return out


@cache
def can_multiply() -> bool:
    """Whether `multiply` exists for bfloat16 on this CPU: older ones lack the instructions."""
    ones = torch.ones(2, 2, dtype=torch.bfloat16)
    try:
        multiply(ones, ones, None, "swish")
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return True
