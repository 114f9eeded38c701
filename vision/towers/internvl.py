"""InternVL's vision tower over packed patches: each picture is attended together with a row of its own that stands for
no patch. Reuses the tower's own submodules; owns only where rows are placed and how they are attended. Source: the
InternVL papers and transformers' modules, which tests hold it against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from vision.towers.packed import PatchBatch, embed_patches

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]


def hidden_states(tower: Any, batch: PatchBatch, plan: Callable[[np.ndarray], Attend]) -> torch.Tensor:
    """(R, D_vision): the patches' states after the last layer and the tower's final norm.

    tower: transformers' InternVLVisionModel; each picture has the tower's own size. plan(cu_seqlens) gives the
    attention that keeps those segments apart.
    """
    hidden, is_patch, segments = _embed(tower.embeddings, batch)
    attend = plan(segments)
    for layer in tower.encoder.layer:
        hidden = hidden + layer.lambda_1 * _attention(layer.attention, layer.layernorm_before(hidden), attend)
        hidden = hidden + layer.lambda_2 * layer.mlp(layer.layernorm_after(hidden))
    states: torch.Tensor = tower.layernorm(hidden[is_patch])
    return states


def with_leaders(cu_seqlens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Segments one row longer, that row in front: their cu_seqlens, and where the old rows stand among the new.

    Worked example: cu_seqlens [0, 2, 5] gives [0, 3, 7], and rows 0 to 4 stand at 1, 2, 4, 5, 6.
    """
    lengths = np.diff(cu_seqlens)
    segment = np.repeat(np.arange(len(lengths)), lengths)
    return cu_seqlens + np.arange(len(cu_seqlens)), np.arange(len(segment)) + segment + 1


def _embed(embeddings: Any, batch: PatchBatch) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """(R + pictures, D) rows with positions added, which of them are patches, and their segments."""
    patches = embed_patches(embeddings.patch_embeddings.projection, batch.pixel_values)
    segments, places = with_leaders(batch.cu_seqlens)
    hidden = embeddings.cls_token[0].to(patches).repeat(int(segments[-1]), 1)
    table = torch.zeros(int(segments[-1]), dtype=torch.int64)
    is_patch = torch.from_numpy(places)
    table[is_patch] = torch.from_numpy(1 + batch.rows * embeddings.patch_embeddings.patch_shape[1] + batch.cols)
    is_patch = is_patch.to(patches.device)
    hidden[is_patch] = patches
    if embeddings.position_embeddings is not None:
        hidden = hidden + embeddings.position_embeddings[0, table.to(patches.device)]
    return hidden, is_patch, segments


def _attention(attn: Any, hidden: torch.Tensor, attend: Attend) -> torch.Tensor:
    q, k = attn.q_norm(attn.q_proj(hidden)), attn.k_norm(attn.k_proj(hidden))
    q, k, v = (x.view(len(hidden), attn.num_heads, attn.head_dim) for x in (q, k, attn.v_proj(hidden)))
    projected: torch.Tensor = attn.projection_layer(attend(q, k, v, attn.scale).flatten(1))
    return projected
