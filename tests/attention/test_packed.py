"""Rows see their own segment and no other, however the segments are grouped into operators."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attention.packed import plan_packed
from tests.attention.dense import dense_attention


@pytest.mark.parametrize("lengths", [[4, 4, 2], [1], [3, 1, 3, 3, 5], [7, 7]])
def test_packed_equals_each_segment_alone(lengths: list[int]) -> None:
    generator = torch.Generator().manual_seed(len(lengths))
    q, k, v = (torch.randn(sum(lengths), 3, 8, generator=generator) for _ in range(3))
    out = plan_packed(np.cumsum([0, *lengths]))(q, k, v, 0.3)
    start = 0
    for length in lengths:
        rows = slice(start, start + length)
        expected = dense_attention(q[rows], k[rows], v[rows], torch.ones(length, length).bool(), 0.3)
        assert (out[rows] - expected).abs().max() < 1e-5
        start += length
