"""Attention written the slow way, in float64: the oracle of every backend."""

from __future__ import annotations

import torch


def dense_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float, softcap: float | None = None
) -> torch.Tensor:
    """q (n, H, K), k and v (m, KH, K), mask (n, m): one query head and one query at a time, in float64."""
    out = torch.empty(q.shape, dtype=torch.float64)
    group = q.shape[1] // k.shape[1]
    for head in range(q.shape[1]):
        keys, values = k[:, head // group].double(), v[:, head // group].double()
        for row in range(len(q)):
            scores = (keys @ q[row, head].double()) * scale
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            weights = torch.softmax(scores.masked_fill(~mask[row], -torch.inf), dim=0)
            out[row, head] = weights @ values
    return out


def is_visible(query: int, key: int, ranges: tuple, window: int | None, range_rule: str) -> bool:
    """The rule, one pair at a time."""
    near = window is None or key > query - window
    together = any(start <= query < stop and start <= key < stop for start, stop in ranges)
    if range_rule == "whole":
        return (key <= query and near) or together
    return (key <= query or together) and near
