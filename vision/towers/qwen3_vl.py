"""Qwen3-VL's vision tower over packed patches, with deepstack. Reuses the tower's own submodules; owns only how rows
are placed and attended. Source: the Qwen3-VL technical report and transformers' modules, which tests hold it
against."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from vision.towers.arranged import Arranged, Attends, Read, batch_view
from vision.towers.packed import EncodedCells, PatchBatch, embed_patches
from vision.towers.rotary import attend_rotated, phases_at, places_of


class Qwen3VLTower:
    """module: transformers' Qwen3VLVisionModel. R patches become N = R / merge_size**2 cells."""

    def __init__(self, module: Any) -> None:
        self._module = module

    @property
    def weight(self) -> torch.Tensor:
        weight: torch.Tensor = self._module.patch_embed.proj.weight
        return weight

    def arrange(self, batch: PatchBatch) -> Arranged:
        side = int(self._module.pos_embed.num_embeddings**0.5)
        corners, shares = corner_taps(batch, side)
        return Arranged(
            arrays={"places": places_of(batch), "corners": corners, "shares": shares},
            views={"slots": batch_view(batch)},
        )

    def run(self, pixel_values: torch.Tensor, read: Read, attend: Attends) -> EncodedCells:
        tower = self._module
        hidden = embed_patches(tower.patch_embed.proj, pixel_values)  # (R, D_vision)
        hidden = hidden + self._positions(read).to(hidden.dtype)
        phases = phases_at(tower.rotary_pos_emb.inv_freq, read["places"], hidden)
        planes = []
        for level, block in enumerate(tower.blocks):
            hidden = hidden + attend_rotated(block.attn, block.norm1(hidden), phases, attend["slots"])
            hidden = hidden + block.mlp(block.norm2(hidden))
            if level in tower.deepstack_visual_indexes:
                merger = tower.deepstack_merger_list[tower.deepstack_visual_indexes.index(level)]
                planes.append(merger(hidden))
        return EncodedCells(embeddings=tower.merger(hidden), planes=tuple(planes))

    def _positions(self, read: Read) -> torch.Tensor:
        """(R, D_vision): the learned square table, read bilinearly at each patch's place (corners on corners)."""
        total: torch.Tensor | int = 0
        for index, share in zip(read["corners"], read["shares"], strict=True):
            total = total + self._module.pos_embed(index) * share[:, None]
        assert isinstance(total, torch.Tensor)
        return total


def corner_taps(batch: PatchBatch, side: int) -> tuple[np.ndarray, np.ndarray]:
    """The four entries of a table of side x side that each patch reads, and how much of each: (4, R) int64 and (4, R)
    float32."""
    row_low, row_high, row_share = _taps(batch.rows, batch.heights, side)
    col_low, col_high, col_share = _taps(batch.cols, batch.widths, side)
    corners, shares = [], []
    for row, row_weight in ((row_low, 1 - row_share), (row_high, row_share)):
        for col, col_weight in ((col_low, 1 - col_share), (col_high, col_share)):
            corners.append(row * side + col)
            shares.append(row_weight * col_weight)
    return np.stack(corners), np.stack(shares)


def _taps(place: np.ndarray, size: np.ndarray, side: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where places 0..size-1 fall on a table of `side`: index below, index above, share of the one above (float32).

    Worked example: size 3 on side 5 gives points 0, 2, 4; size 4 on side 7 gives 0, 2, 4, 6; a size of 1 gives 0.
    """
    point = place.astype(np.float32) * np.float32(side - 1) / np.maximum(size - 1, 1).astype(np.float32)
    low = np.floor(point).astype(np.int64)
    return low, np.minimum(low + 1, side - 1), (point - low).astype(np.float32)
