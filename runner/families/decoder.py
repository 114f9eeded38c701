"""The language model of every family: rotary attention with grouped heads, RMS norms, a gated MLP. Runs transformers'
own weights in few operators; owns the order of these and knows no pictures, pages or sequences.

Built once: query, key and value projections of a layer become one, and the three they were made of are dropped, so that
transformers' forward cannot run any more. Layers that are packed afterwards are used packed.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from attention.protocol import PlannedAttention
from runner.errors import EngineStartError
from runner.families.base import VisualRows
from runner.packed_linear import project_add, project_mul, project_silu

# From this many rows on, a norm costs memory traffic and not calls.
MANY_ROWS = 32


class Decoder:
    """text_model: transformers' Qwen2.5-VL, Qwen2-VL, Qwen3-VL, Qwen2 or Llama decoder, without its head."""

    def __init__(self, text_model: Any) -> None:
        if text_model.config.hidden_act != "silu":
            raise EngineStartError(f"a decoder with activation {text_model.config.hidden_act!r} is not served")
        self._model = text_model
        for layer in text_model.layers:
            _fuse_projections(layer.self_attn)

    def forward(
        self, embeds: torch.Tensor, positions: torch.Tensor, visual: VisualRows | None, planned: PlannedAttention
    ) -> torch.Tensor:
        """embeds (S, D), positions (rope_axes, S) -> (S, D) after the final norm. Planes of `visual` are added to its
        rows after the first layers."""
        phases = self._phases(embeds, positions)
        planes = () if visual is None else visual.planes
        hidden = embeds
        for number, layer in enumerate(self._layers):
            hidden = layer.forward(hidden, phases, planned)
            if number < len(planes) and visual is not None:
                hidden.index_add_(0, visual.rows, planes[number].to(hidden.dtype))
        return rms_norm(hidden, self._model.norm)

    @cached_property
    def _layers(self) -> list[_Layer]:
        """Looked up at the first step, when all packing is done: finding a submodule by its name takes microseconds."""
        return [_Layer(layer) for layer in self._model.layers]

    def _phases(self, embeds: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos, and sin with its first half negated: (S, 1, K), for all layers of a step."""
        ids = positions if len(positions) == 1 else positions[:, None]
        cos, sin = self._model.rotary_emb(embeds[None], ids)
        low, high = sin[0].chunk(2, dim=-1)
        return cos[0][:, None], torch.cat((-low, high), dim=-1)[:, None]


class _Layer:
    """One layer's submodules, at hand."""

    def __init__(self, layer: Any) -> None:
        attn, mlp = layer.self_attn, layer.mlp
        self.index: int = attn.layer_idx
        self.head_dim: int = attn.head_dim
        self.scale: float = attn.scaling
        self.enter, self.middle = layer.input_layernorm, layer.post_attention_layernorm
        self.qkv, self.out, self.heads = attn.qkv_proj, attn.o_proj, attn.head_counts
        self.q_norm, self.k_norm = getattr(attn, "q_norm", None), getattr(attn, "k_norm", None)
        self.gate, self.up, self.down = mlp.gate_proj, mlp.up_proj, mlp.down_proj

    def forward(
        self, hidden: torch.Tensor, phases: tuple[torch.Tensor, torch.Tensor], planned: PlannedAttention
    ) -> torch.Tensor:
        num_heads, num_kv_heads = self.heads
        qkv = self.qkv(rms_norm(hidden, self.enter)).view(len(hidden), -1, self.head_dim)  # (S, H + 2 KH, K)
        turning, v = torch.split(qkv, [num_heads + num_kv_heads, num_kv_heads], dim=1)
        if self.q_norm is not None:
            q, k = torch.split(turning, [num_heads, num_kv_heads], dim=1)
            turning = torch.cat((rms_norm(q, self.q_norm), rms_norm(k, self.k_norm)), dim=1)
        q, k = torch.split(rotate(turning, phases), [num_heads, num_kv_heads], dim=1)
        attended = planned.run(self.index, q, k, v, self.scale).flatten(1)
        hidden = project_add(self.out, attended, hidden)
        inner = rms_norm(hidden, self.middle)
        return project_add(self.down, project_mul(self.up, inner, project_silu(self.gate, inner)), hidden)


def rotate(x: torch.Tensor, phases: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Turn pairs (i, i + K / 2) of x (S, heads, K); phases: cos, and sin with its first half negated, (S, 1, K)."""
    cos, signed_sin = phases
    return x.roll(x.shape[-1] // 2, -1).mul_(signed_sin).addcmul_(x, cos)


def rms_norm(x: torch.Tensor, norm: Any) -> torch.Tensor:
    """norm: transformers' module over the last axis.

    Many rows on a CPU are normalised as the channels of a batch norm of no mean and known variance: torch has that in
    one pass over memory and float32, and an RMS norm in five.
    """
    weight, eps = norm.weight, norm.variance_epsilon
    size = x.shape[-1]
    if x.device.type != "cpu" or x.ndim > 2 or len(x) < MANY_ROWS:
        return F.rms_norm(x, (size,), weight, eps)
    variance = torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32).square_().div_(size)
    mean = torch.zeros_like(variance)
    normed: torch.Tensor = torch.native_batch_norm(x[None], None, None, mean, variance, False, 0.0, eps)[0][0]
    return normed.mul_(weight)


def _fuse_projections(attn: Any) -> None:
    """Replace `q_proj`, `k_proj` and `v_proj` by `qkv_proj`."""
    parts = [attn.q_proj, attn.k_proj, attn.v_proj]
    weight = torch.cat([part.weight.data for part in parts])
    fused = nn.Linear(weight.shape[1], len(weight), bias=parts[0].bias is not None, device="meta")
    fused.weight = nn.Parameter(weight, requires_grad=False)
    if parts[0].bias is not None:
        fused.bias = nn.Parameter(torch.cat([part.bias.data for part in parts]), requires_grad=False)
    attn.qkv_proj = fused
    attn.head_counts = (parts[0].out_features // attn.head_dim, parts[1].out_features // attn.head_dim)
    del attn.q_proj, attn.k_proj, attn.v_proj
