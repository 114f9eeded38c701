"""transformers' small modules in fewer operators, with the same weights: RMS norms and gated MLPs, by themselves and in
place of a vision tower's own. Knows neither attention nor rows' meaning."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from runner.column_linear import ColumnLinear, multiplies_columns
from runner.packed_linear import PackedLinear
from runner.row_passes import norm_rows, turn_rows
from vision.towers.rotary import Phases, rotate

# Up to this many rows a norm costs calls, and from so many on memory traffic.
FEW_ROWS, MANY_ROWS = 8, 32


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
        return gated_mlp(self.gate_proj, self.up_proj, self.down_proj, x)


def gated_mlp(
    gate: nn.Module, up: nn.Module, down: nn.Module, x: torch.Tensor, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """down(silu(gate(x)) * up(x)), + residual; few rows go through all three as columns."""
    if multiplies_columns(gate, up, down, rows=len(x)):
        out = _mlp_of_columns(gate, up, down, x.t()).t().contiguous()
        return out if residual is None else out.add_(residual)
    opened = gate.silu(x) if isinstance(gate, PackedLinear | ColumnLinear) else F.silu(gate(x), inplace=True)
    opened = up.times(x, opened) if isinstance(up, PackedLinear) else opened.mul_(up(x))
    return multiply_plus(down, opened, residual)


def multiply_plus(linear: nn.Module, x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
    """linear(x) + residual, which stays as it is."""
    if residual is not None and isinstance(linear, PackedLinear):
        return linear.plus(x, residual)
    out: torch.Tensor = linear(x)
    return out if residual is None else out.add_(residual)


def _mlp_of_columns(gate: Any, up: Any, down: Any, x: torch.Tensor) -> torch.Tensor:
    """x (D, n) -> (D, n)."""
    out: torch.Tensor = down.columns(F.silu(gate.columns(x), inplace=True).mul_(up.columns(x)))
    return out


def fuse_blocks(tower: Any) -> None:
    """Swap the norms, turns and MLPs of a tower's blocks, and its merger's norm, where they are of these kinds."""
    for block in tower.blocks:
        block.attn.turn = turn_patches
        for name in ("norm1", "norm2"):
            if hasattr(getattr(block, name), "variance_epsilon"):
                setattr(block, name, RmsNorm(getattr(block, name)))
        if hasattr(block.mlp, "gate_proj") and is_silu(block.mlp.act_fn):
            block.mlp = GatedMlp(block.mlp)
    if hasattr(tower.merger.ln_q, "variance_epsilon"):
        tower.merger.ln_q = RmsNorm(tower.merger.ln_q)


def turn_patches(x: torch.Tensor, phases: Phases) -> torch.Tensor:
    """vision.towers.rotary.rotate of x (R, 2, H, K), which may be written over."""
    cos, signed_sin = (phase.flatten(1, 2) for phase in phases)
    return x if turn_rows(x.flatten(1, 2), cos, signed_sin) else rotate(x, phases)


def is_silu(activation: Any) -> bool:
    probe = torch.linspace(-4, 4, 9)
    return torch.allclose(activation(probe), F.silu(probe))


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Over the last axis.

    Where nothing was compiled for it, many rows on a CPU are normalised as the channels of a batch norm of no mean and
    known variance: torch has that in one pass over memory, and an RMS norm in five. Few rows are normalised beside
    themselves with the sign turned, which have no mean and the same mean square: layer norm is one call, RMS norm nine.
    """
    if (in_one_pass := norm_rows(x, weight, eps)) is not None:
        return in_one_pass
    size = x.shape[-1]
    if x.device.type == "cpu" and x.ndim == 2 and len(x) <= FEW_ROWS:
        return F.layer_norm(torch.cat((x, -x), dim=-1), (2 * size,), None, None, eps)[:, :size] * weight
    if x.device.type != "cpu" or x.ndim > 2 or len(x) < MANY_ROWS:
        return F.rms_norm(x, (size,), weight, eps)
    variance = torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32).square_().div_(size)
    mean = torch.zeros_like(variance)
    normed: torch.Tensor = torch.native_batch_norm(x[None], None, None, mean, variance, False, 0.0, eps)[0][0]
    return normed.mul_(weight)
