"""transformers' small modules in fewer operators, with the same weights: RMS norms and gated MLPs, by themselves and in
place of a vision tower's own. Knows neither attention nor rows' meaning."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from runner.packed_linear import PackedLinear

# From this many rows on, a norm costs memory traffic and not calls.
MANY_ROWS = 32


class RmsNorm(nn.Module):
    """norm: transformers' module over the last axis, which has `weight` and `variance_epsilon`."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.variance_epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight, self.eps)


class GatedMlp(nn.Module):
    """mlp: transformers' module of `gate_proj`, `up_proj` and `down_proj` with silu."""

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = mlp.gate_proj, mlp.up_proj, mlp.down_proj

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(gate(self.gate_proj, self.up_proj, x))
        return out


def gate(gate_proj: nn.Module, up_proj: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """silu(gate_proj(x)) * up_proj(x)."""
    opened = gate_proj.silu(x) if isinstance(gate_proj, PackedLinear) else F.silu(gate_proj(x), inplace=True)
    return opened.mul_(up_proj(x))


def fuse_blocks(tower: Any) -> None:
    """Swap the norms and MLPs of a tower's blocks, and its merger's norm, where they are of these kinds."""
    for block in tower.blocks:
        for name in ("norm1", "norm2"):
            if hasattr(getattr(block, name), "variance_epsilon"):
                setattr(block, name, RmsNorm(getattr(block, name)))
        if hasattr(block.mlp, "gate_proj") and is_silu(block.mlp.act_fn):
            block.mlp = GatedMlp(block.mlp)
    if hasattr(tower.merger.ln_q, "variance_epsilon"):
        tower.merger.ln_q = RmsNorm(tower.merger.ln_q)


def is_silu(activation: Any) -> bool:
    probe = torch.linspace(-4, 4, 9)
    return torch.allclose(activation(probe), F.silu(probe))


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Over the last axis.

    Many rows on a CPU are normalised as the channels of a batch norm of no mean and known variance: torch has that in
    one pass over memory, and an RMS norm in five.
    """
    size = x.shape[-1]
    if x.device.type != "cpu" or x.ndim > 2 or len(x) < MANY_ROWS:
        return F.rms_norm(x, (size,), weight, eps)
    variance = torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32).square_().div_(size)
    mean = torch.zeros_like(variance)
    normed: torch.Tensor = torch.native_batch_norm(x[None], None, None, mean, variance, False, 0.0, eps)[0][0]
    return normed.mul_(weight)
