"""Attention of towers whose rows turn with their place in the picture. Owns the rotation and the attention submodule's
packed call; knows neither segments nor the order of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from vision.towers.packed import PatchBatch

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]
Phases = tuple[torch.Tensor, torch.Tensor]


def attend_rotated(attn: Any, hidden: torch.Tensor, phases: Phases, attend: Attend) -> torch.Tensor:
    """(R, D) -> (R, D) through the tower's own `qkv` and `proj`. attend(q, k, v, scale) over (R, H, K) rows keeps
    segments apart. `attn.turn`, where whoever owns the submodule gave it one, stands in for `rotate`."""
    qkv = attn.qkv(hidden).view(len(hidden), 3, attn.num_heads, -1)  # (R, 3, H, K)
    q, k = getattr(attn, "turn", rotate)(qkv[:, :2], phases).unbind(1)
    out = attend(q, k, qkv[:, 2], attn.scaling)
    projected: torch.Tensor = attn.proj(out.flatten(1))
    return projected


def rotate(x: torch.Tensor, phases: Phases) -> torch.Tensor:
    """Rotary embedding: turns pairs (i, i + K / 2) of x, (R, 2, H, K). Two passes over memory: rolling takes three."""
    cos, signed_sin = phases
    half = x.shape[-1] // 2
    turned = x * cos
    turned[..., :half].addcmul_(x[..., half:], signed_sin[..., :half])
    turned[..., half:].addcmul_(x[..., :half], signed_sin[..., half:])
    return turned


def places_of(batch: PatchBatch) -> np.ndarray:
    """(R, 2) int64: row and column of each patch."""
    return np.stack((batch.rows, batch.cols), axis=1)


def phases_at(inv_freq: torch.Tensor, places: torch.Tensor, like: torch.Tensor) -> Phases:
    """cos, and sin with its first half negated, (R, 1, 1, K), in the dtype of `like`, at places (R, 2): a quarter of
    the angles turns with the row, the next with the column, and both come again in the second half."""
    turned = places[:, :, None].float() * inv_freq.to(device=like.device, dtype=torch.float32)  # (R, 2, K / 4)
    angles = turned.flatten(1)[:, None, None]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1).to(like.dtype), torch.cat((-sin, sin), dim=-1).to(like.dtype)
