"""The language model of the Gemma families: norms whose weights count from 1, layers with their own sight and rotation.
Runs transformers' own weights in few operators; owns the order of these and knows no pictures, pages or sequences.

Built once, as runner.families.decoder is: afterwards transformers' own forward cannot run any more.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

import torch

from attention.protocol import LayerAttention, PlannedAttention
from runner.errors import EngineStartError
from runner.families.decoder import fuse_projections, rotate
from runner.families.fused import rms_norm

Phases = tuple[torch.Tensor, torch.Tensor]
SERVED = ("gemma", "gemma2", "gemma3_text")


class GemmaDecoder:
    """text_model: transformers' Gemma, Gemma 2 or Gemma 3 decoder, without its head."""

    def __init__(self, text_model: Any) -> None:
        if text_model.config.model_type not in SERVED:
            raise EngineStartError(f"a text decoder {text_model.config.model_type!r} is not served as a Gemma")
        self._model = text_model
        self._norm = _GemmaNorm(text_model.norm)
        self._types: tuple[str | None, ...] = (None,) * len(text_model.layers)
        if text_model.config.model_type == "gemma3_text":  # each type of layer turns its own way
            self._types = tuple(text_model.config.layer_types)
        for layer in text_model.layers:
            fuse_projections(layer.self_attn)

    def forward(
        self,
        embeds: torch.Tensor,
        positions: torch.Tensor,
        planned: PlannedAttention,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """embeds (S, D), positions (1, S) -> after the final norm (S, D), or (n, D) of the `wanted` rows."""
        phases = {kind: self._phases(embeds, positions, kind) for kind in set(self._types)}
        hidden = embeds
        *before, last = self._layers
        for kind, layer in zip(self._types, before, strict=False):
            hidden = layer.forward(hidden, phases[kind], planned, None)
        hidden = last.forward(hidden, phases[self._types[-1]], planned, wanted)
        return self._norm.forward(hidden)

    @cached_property
    def _layers(self) -> list[_Layer]:
        """Looked up at the first step, when all packing is done."""
        return [_Layer(layer) for layer in self._model.layers]

    def _phases(self, embeds: torch.Tensor, positions: torch.Tensor, kind: str | None) -> Phases:
        """cos, and sin with its first half negated: (S, 1, K)."""
        named = () if kind is None else (kind,)
        cos, sin = self._model.rotary_emb(embeds[None], positions, *named)
        low, high = sin[0].chunk(2, dim=-1)
        return cos[0][:, None], torch.cat((-low, high), dim=-1)[:, None]


class _GemmaNorm:
    """norm: transformers' module of `weight` and `eps`; computed in float32, as it is there."""

    def __init__(self, norm: Any) -> None:
        self._weight, self._eps = 1.0 + norm.weight.detach().float(), norm.eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x.float(), self._weight, self._eps).to(x.dtype)


class _Layer:
    """One layer's submodules, at hand. Gemma 2 and 3 also norm what attention and MLP give."""

    def __init__(self, layer: Any) -> None:
        attn = layer.self_attn
        self.index: int = attn.layer_idx
        self.head_dim: int = attn.head_dim
        self.scale: float = attn.scaling
        self.qkv, self.out, self.heads = attn.qkv_proj, attn.o_proj, attn.head_counts
        self.turned = (_GemmaNorm(attn.q_norm), _GemmaNorm(attn.k_norm)) if hasattr(attn, "q_norm") else None
        self.enter = _GemmaNorm(layer.input_layernorm)
        names = ("post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
        is_wrapped = hasattr(layer, names[1])
        self.after_attention = _GemmaNorm(getattr(layer, names[0])) if is_wrapped else None
        self.middle = _GemmaNorm(getattr(layer, names[1] if is_wrapped else names[0]))
        self.after_mlp = _GemmaNorm(getattr(layer, names[2])) if is_wrapped else None
        self.gate, self.up, self.down = layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj
        self.activation = layer.mlp.act_fn

    def forward(
        self, hidden: torch.Tensor, phases: Phases, planned: PlannedAttention, wanted: torch.Tensor | None
    ) -> torch.Tensor:
        num_heads, num_kv_heads = self.heads
        qkv = self.qkv(self.enter.forward(hidden)).view(len(hidden), -1, self.head_dim)  # (S, H + 2 KH, K)
        q, k, v = torch.split(qkv, [num_heads, num_kv_heads, num_kv_heads], dim=1)
        if self.turned is not None:
            q, k = self.turned[0].forward(q), self.turned[1].forward(k)
        q, k = torch.split(rotate(torch.cat((q, k), dim=1), phases), [num_heads, num_kv_heads], dim=1)
        attended = planned.run(self.index, q, k, v, self.scale).flatten(1)
        if wanted is not None:
            attended, hidden = attended[wanted], hidden[wanted]
        hidden = _add(self.out, attended, hidden, self.after_attention)
        entering = self.middle.forward(hidden)
        inner = self.activation(self.gate(entering)).mul_(self.up(entering))
        return _add(self.down, inner, hidden, self.after_mlp)


def _add(linear: Any, x: torch.Tensor, hidden: torch.Tensor, norm: _GemmaNorm | None) -> torch.Tensor:
    return linear(x).add_(hidden) if norm is None else hidden + norm.forward(linear(x))


def gemma_layers(text_config: Any) -> tuple[LayerAttention, ...]:
    """What each layer sees. Gemma 3's windows hold inside a picture, too; Gemma 2's do not, as in PaliGemma 2."""
    softcap = getattr(text_config, "attn_logit_softcapping", None)
    ranges: Literal["whole", "in_window"] = "in_window" if text_config.model_type == "gemma3_text" else "whole"
    types = getattr(text_config, "layer_types", None) or ["full_attention"] * text_config.num_hidden_layers
    window = getattr(text_config, "sliding_window", None)
    return tuple(
        LayerAttention(window=window if kind == "sliding_attention" else None, ranges=ranges, softcap=softcap)
        for kind in types
    )
