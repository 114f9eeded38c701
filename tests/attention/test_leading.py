"""Rows behind a step's own are neither read nor written."""

from __future__ import annotations

import torch

from attention.leading import LeadingRows, lead_rows


class Doubling:
    """Stands for a planned step of three rows."""

    def run(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        assert len(q) == len(k) == len(v) == 3
        return q * 2 + layer * scale


def test_only_the_first_rows_are_the_steps() -> None:
    q = torch.arange(5.0)[:, None, None].expand(5, 2, 4)
    k = torch.ones(5, 1, 4)
    leading = lead_rows(Doubling(), 3, of=5)
    for layer in range(2):  # what one layer left does not show in the next
        assert leading.run(layer, q, k, k, 0.5)[:, 0, 0].tolist() == [layer / 2, 2 + layer / 2, 4 + layer / 2, 0, 0]
    assert isinstance(leading, LeadingRows)


def test_a_full_step_is_left_alone() -> None:
    planned = Doubling()
    assert lead_rows(planned, 3, of=3) is planned
