"""Attention of towers whose rows turn with their place in the picture. Owns the rotation and the attention submodule's
packed call; knows neither segments nor the order of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]
PlanAttention = Callable[[np.ndarray], Attend]
Phases = tuple[torch.Tensor, torch.Tensor]


def attend_rotated(attn: Any, hidden: torch.Tensor, phases: Phases, attend: Attend) -> torch.Tensor:
    """(R, D) -> (R, D) through the tower's own `qkv` and `proj`. attend(q, k, v, scale) over (R, H, K) rows keeps
    segments apart."""
    q, k, v = attn.qkv(hidden).view(len(hidden), 3, attn.num_heads, -1).unbind(1)  # each (R, H, K)
    out = attend(rotate(q, phases), rotate(k, phases), v, attn.scaling)
    projected: torch.Tensor = attn.proj(out.flatten(1))
    return projected


def rotate(x: torch.Tensor, phases: Phases) -> torch.Tensor:
    """Rotary embedding in float32. x: (R, H, K); phases: cos and sin, (R, 1, K / 2), of the angle that turns pair
    (i, i + K / 2)."""
    cos, sin = phases
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def rotary_phases(inv_freq: torch.Tensor, rows: np.ndarray, cols: np.ndarray, device: torch.device) -> Phases:
    """cos and sin, (R, 1, K / 2): the first half of the angles turns with the row, the second with the column."""
    places = torch.from_numpy(np.stack((rows, cols), axis=1)).to(device)
    turned = places[:, :, None].float() * inv_freq.to(device=device, dtype=torch.float32)  # (R, 2, K / 4)
    angles = turned.flatten(1)[:, None]
    return angles.cos(), angles.sin()
