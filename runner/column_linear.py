"""A linear layer that multiplies few rows as columns: the weight stands on the left and is read as it lies. Owns which
product is taken for how many rows, the fewest going to runner/products.py where it is there; knows no model.

Where a step waits for memory, this reads weights faster than packed products do, and it needs no copy of them: a table
shared with the embedding is kept once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from runner.packed_linear import can_multiply, multiply
from runner.products import plain_products

# Up to so many rows; beyond, turning the result round costs more than is gained.
MOST_COLUMNS = 128


class ColumnLinear(nn.Module):
    """Stands in for an nn.Linear, and keeps its `weight` (N, K) and bias."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.products = plain_products(linear.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.ndim != 2 or len(x) > MOST_COLUMNS:
            return F.linear(x, self.weight, self.bias)
        if self.products is not None and self.products.take(len(x)):
            return self.products.multiply(x, self.bias)
        if len(x) == 1:
            row = torch.mv(self.weight, x[0])[None]
            return row if self.bias is None else row.add_(self.bias)
        return self.columns(x.t()).t().contiguous()

    def columns(self, x: torch.Tensor) -> torch.Tensor:
        """x (K, n) -> (N, n)."""
        out = torch.mm(self.weight, x)
        return out if self.bias is None else out.add_(self.bias[:, None])

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        """F.silu of the product."""
        if len(x) > MOST_COLUMNS and can_multiply():
            return multiply(x, self.weight, self.bias, "swish")
        return F.silu(self(x), inplace=True)


def multiplies_columns(*layers: nn.Module, rows: int) -> bool:
    """Whether products of so many rows may be chained as columns, and turned round once at their end."""
    return 1 < rows <= MOST_COLUMNS and all(isinstance(layer, ColumnLinear) for layer in layers)
