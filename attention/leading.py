"""A planned step in tensors that hold more rows than it has. Owns the cut and what stands behind it; knows no pages and
not why there are more.
"""

from __future__ import annotations

import torch

from attention.protocol import PlannedAttention


class LeadingRows:
    """See PlannedAttention: of q, k and v only the first `rows` are the step's. Of what comes out the others are zeros;
    it is the same tensor in each layer."""

    def __init__(self, planned: PlannedAttention, rows: int) -> None:
        self._planned, self._rows = planned, rows
        self._out: torch.Tensor | None = None

    def run(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        rows = self._rows
        attended = self._planned.run(layer, q[:rows], k[:rows], v[:rows], scale)
        if self._out is None:
            self._out = attended.new_zeros((len(q), *attended.shape[1:]))
        self._out[:rows] = attended
        return self._out


def lead_rows(planned: PlannedAttention, rows: int, *, of: int) -> PlannedAttention:
    """The step as it is where its rows are all there are."""
    return planned if rows == of else LeadingRows(planned, rows)
