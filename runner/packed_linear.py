"""A linear layer whose weight lies in memory as the CPU's matrix kernels read it. Owns the private operators behind
that; knows no model, and not whether it pays (runner/linear_forms.py).

One copy of a weight is kept: the original is dropped, except where an embedding table shares it.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

# Kernels arrange a weight for a number of rows; what is arranged for many is no slower for few, and not the reverse.
PACKED_FOR_ROWS = 1024


class PackedLinear(nn.Module):
    """Stands in for an nn.Linear; has no `weight`."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.data, PACKED_FOR_ROWS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return multiply(x, self.packed, self.bias, "none")

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        """F.silu of the product, rounded once."""
        return multiply(x, self.packed, self.bias, "swish")


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
