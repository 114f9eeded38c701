"""Attention inside an encoder over packed rows: each row sees the rows of its own segment. Owns the grouping into few
large operators; knows neither pages nor what a segment is (a video slot, an image, a window)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from attention.many import attend_segments

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive segments of one length: rows [start, start + count * length)."""

    start: int
    count: int
    length: int


def plan_packed(cu_seqlens: np.ndarray) -> Attend:
    """A function attend(q, k, v, scale) over (R, H, K) rows in which rows see only their own segment.

    cu_seqlens: (segments + 1,) int64. Consecutive segments of one length run as one batched operator.

    Worked example: cu_seqlens [0, 4, 8, 10] gives two operators: rows 0-8 as a batch of 2 x 4, rows 8-10 as 1 x 2.
    """
    runs = _equal_runs(cu_seqlens)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        parts = [_attend_run(run, q, k, v, scale) for run in runs]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    return attend


def _equal_runs(cu_seqlens: np.ndarray) -> list[_Run]:
    runs: list[_Run] = []
    for start, length in zip(cu_seqlens[:-1].tolist(), np.diff(cu_seqlens).tolist(), strict=True):
        if runs and runs[-1].length == length:
            last = runs.pop()
            runs.append(_Run(last.start, last.count + 1, length))
        else:
            runs.append(_Run(start, 1, length))
    return runs


def _attend_run(run: _Run, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    rows = slice(run.start, run.start + run.count * run.length)
    found = attend_segments(q[rows], k[rows], v[rows], scale, count=run.count)
    if found is not None:
        return found

    def batched(x: torch.Tensor) -> torch.Tensor:  # (count, H, length, K)
        return x[rows].view(run.count, run.length, *x.shape[1:]).transpose(1, 2)

    out = F.scaled_dot_product_attention(batched(q), batched(k), batched(v), scale=scale)
    return out.transpose(1, 2).flatten(0, 1)
