"""The language model of every family: rotary attention with grouped heads, RMS norms, a gated MLP. Runs transformers'
own weights in few operators; owns the order of these and knows no pictures, pages or sequences.

Built once: query, key and value projections of a layer become one, and the three they were made of are dropped, so that
transformers' forward cannot run any more. Layers that are packed afterwards are used packed.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import nn

from attention.protocol import PlannedAttention
from runner.errors import EngineStartError
from runner.families.base import VisualRows
from runner.families.fused import RmsNorm, gated_mlp, is_silu, multiply_plus
from runner.row_passes import turn_rows


class Decoder:
    """text_model: transformers' Qwen2.5-VL, Qwen2-VL, Qwen3-VL, Qwen2 or Llama decoder, without its head."""

    def __init__(self, text_model: Any) -> None:
        if not is_silu(text_model.layers[0].mlp.act_fn):
            raise EngineStartError("only decoders whose activation is silu are served")
        self._model = text_model
        self._norm = RmsNorm(text_model.norm)
        for layer in text_model.layers:
            fuse_projections(layer.self_attn)

    def forward(
        self,
        embeds: torch.Tensor,
        positions: torch.Tensor,
        visual: VisualRows | None,
        planned: PlannedAttention,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """embeds (S, D), positions (rope_axes, S) -> after the final norm (S, D), or (n, D) of the `wanted` rows.
        Planes of `visual` are added to its rows after the first layers."""
        phases = self._phases(embeds, positions)
        planes = () if visual is None else visual.planes
        hidden, last = embeds, len(self._layers) - 1
        for number, layer in enumerate(self._layers):
            narrows = number == last and number >= len(planes)
            hidden = layer.forward(hidden, phases, planned, wanted if narrows else None)
            if number < len(planes) and visual is not None:
                hidden.index_add_(0, visual.rows, planes[number].to(hidden.dtype))
        if wanted is not None and last < len(planes):  # the last layer, too, had a plane for all rows
            hidden = hidden[wanted]
        return self._norm.forward(hidden)

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
        attn = layer.self_attn
        self.index: int = attn.layer_idx
        self.head_dim: int = attn.head_dim
        self.scale: float = attn.scaling
        self.enter, self.middle = RmsNorm(layer.input_layernorm), RmsNorm(layer.post_attention_layernorm)
        self.qkv, self.out, self.heads = attn.qkv_proj, attn.o_proj, attn.head_counts
        self.norms = (RmsNorm(attn.q_norm), RmsNorm(attn.k_norm)) if hasattr(attn, "q_norm") else None
        self.gate, self.up, self.down = layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj

    def forward(
        self,
        hidden: torch.Tensor,
        phases: tuple[torch.Tensor, torch.Tensor],
        planned: PlannedAttention,
        wanted: torch.Tensor | None,
    ) -> torch.Tensor:
        num_heads, num_kv_heads = self.heads
        qkv = self.qkv(self.enter.forward(hidden)).view(len(hidden), -1, self.head_dim)  # (S, H + 2 KH, K)
        turning, v = torch.split(qkv, [num_heads + num_kv_heads, num_kv_heads], dim=1)
        if self.norms is not None:
            q, k = torch.split(turning, [num_heads, num_kv_heads], dim=1)
            turning = torch.cat((self.norms[0].forward(q), self.norms[1].forward(k)), dim=1)
        q, k = torch.split(rotate(turning, phases), [num_heads, num_kv_heads], dim=1)
        attended = planned.run(self.index, q, k, v, self.scale).flatten(1)
        if wanted is not None:
            attended, hidden = attended[wanted], hidden[wanted]
        hidden = multiply_plus(self.out, attended, hidden)
        return gated_mlp(self.gate, self.up, self.down, self.middle.forward(hidden), hidden)


def rotate(x: torch.Tensor, phases: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Turn pairs (i, i + K / 2) of x (S, heads, K), which may be written over; phases: cos, and sin with its first half
    negated, (S, 1, K)."""
    cos, signed_sin = phases
    if turn_rows(x, cos, signed_sin):
        return x
    return x.roll(x.shape[-1] // 2, -1).mul_(signed_sin).addcmul_(x, cos)


def fuse_projections(attn: Any) -> None:
    """Replace `q_proj`, `k_proj` and `v_proj` by `qkv_proj`, and say in `head_counts` how many heads they are."""
    parts = [attn.q_proj, attn.k_proj, attn.v_proj]
    weight = torch.cat([part.weight.data for part in parts])
    fused = nn.Linear(weight.shape[1], len(weight), bias=parts[0].bias is not None, device="meta")
    fused.weight = nn.Parameter(weight, requires_grad=False)
    if parts[0].bias is not None:
        fused.bias = nn.Parameter(torch.cat([part.bias.data for part in parts]), requires_grad=False)
    attn.qkv_proj = fused
    attn.head_counts = (parts[0].out_features // attn.head_dim, parts[1].out_features // attn.head_dim)
    del attn.q_proj, attn.k_proj, attn.v_proj
