"""Qwen3-VL's vision tower over packed patches, with deepstack. Reuses the tower's own submodules; owns only how rows
are placed and attended. Source: the Qwen3-VL technical report and transformers' modules, which tests hold it
against."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from vision.towers.packed import EncodedCells, PatchBatch, embed_patches
from vision.towers.rotary import Attend, attend_rotated, rotary_phases


def encode_packed(tower: Any, batch: PatchBatch, attend: Attend) -> EncodedCells:
    """Encode R patches into N = R / merge_size**2 cells.

    tower: transformers' Qwen3VLVisionModel. attend(q, k, v, scale) over (R, H, K) rows keeps segments apart.
    """
    hidden = embed_patches(tower.patch_embed.proj, batch.pixel_values)  # (R, D_vision)
    hidden = hidden + _position_embedding(tower, batch).to(hidden.dtype)
    phases = rotary_phases(tower.rotary_pos_emb.inv_freq, batch.rows, batch.cols, hidden)
    planes = []
    for level, block in enumerate(tower.blocks):
        hidden = hidden + attend_rotated(block.attn, block.norm1(hidden), phases, attend)
        hidden = hidden + block.mlp(block.norm2(hidden))
        if level in tower.deepstack_visual_indexes:
            merger = tower.deepstack_merger_list[tower.deepstack_visual_indexes.index(level)]
            planes.append(merger(hidden))
    return EncodedCells(embeddings=tower.merger(hidden), planes=tuple(planes))


def _position_embedding(tower: Any, batch: PatchBatch) -> torch.Tensor:
    """(R, D_vision): the learned square table, read bilinearly at each patch's place (corners on corners)."""
    side = int(tower.pos_embed.num_embeddings**0.5)
    row_low, row_high, row_share = _taps(batch.rows, batch.heights, side)
    col_low, col_high, col_share = _taps(batch.cols, batch.widths, side)
    total: torch.Tensor | int = 0
    for row, row_weight in ((row_low, 1 - row_share), (row_high, row_share)):
        for col, col_weight in ((col_low, 1 - col_share), (col_high, col_share)):
            index = torch.from_numpy(row * side + col).to(tower.pos_embed.weight.device)
            weight = torch.from_numpy(row_weight * col_weight).to(tower.pos_embed.weight.device)
            total = total + tower.pos_embed(index) * weight[:, None]
    assert isinstance(total, torch.Tensor)
    return total


def _taps(place: np.ndarray, size: np.ndarray, side: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where places 0..size-1 fall on a table of `side`: index below, index above, share of the one above (float32).

    Worked example: size 3 on side 5 gives points 0, 2, 4; size 4 on side 7 gives 0, 2, 4, 6; a size of 1 gives 0.
    """
    point = place.astype(np.float32) * np.float32(side - 1) / np.maximum(size - 1, 1).astype(np.float32)
    low = np.floor(point).astype(np.int64)
    return low, np.minimum(low + 1, side - 1), (point - low).astype(np.float32)
