"""Qwen2.5-VL's vision tower over packed patches: attention in windows, and over whole slots in a few layers. Qwen2-VL's
is the one without windows. Reuses the tower's own submodules; owns only how rows are ordered and attended. Source: the
Qwen2.5-VL technical report and transformers' modules, which tests hold it against."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from vision.towers.arranged import Arranged, Attends, Read, View, batch_view
from vision.towers.keys import Segments
from vision.towers.packed import EncodedCells, PatchBatch, embed_patches
from vision.towers.rotary import attend_rotated, phases_at, places_of


class Qwen25VLTower:
    """module: transformers' Qwen2.5-VL or Qwen2-VL vision model. R patches, whose segments are slots, become
    N = R / merge_size**2 cells. Rows are reordered where a layer attends otherwise than the one before, a few times in
    all."""

    def __init__(self, module: Any) -> None:
        self._module = module

    @property
    def weight(self) -> torch.Tensor:
        weight: torch.Tensor = self._module.patch_embed.proj.weight
        return weight

    def arrange(self, batch: PatchBatch) -> Arranged:
        arrays, views = {"places": places_of(batch)}, {"slots": batch_view(batch)}
        if windowed_levels(self._module):
            tower = self._module
            cells = tower.window_size // tower.spatial_merge_size // tower.patch_size
            order, windows = window_order(batch, cells * tower.spatial_merge_size)
            arrays |= {"into_windows": order, "into_slots": np.argsort(order)}
            views["windows"] = View(segments=windows, order=order)
        return Arranged(arrays=arrays, views=views)

    def run(self, pixel_values: torch.Tensor, read: Read, attend: Attends) -> EncodedCells:
        tower = self._module
        hidden = embed_patches(tower.patch_embed.proj, pixel_values)  # (R, D_vision)
        phases = {"slots": phases_at(tower.rotary_pos_emb.inv_freq, read["places"], hidden)}
        if "windows" in attend:
            cos, sin = phases["slots"]
            phases["windows"] = cos[read["into_windows"]], sin[read["into_windows"]]
        windowed, now = windowed_levels(tower), "slots"
        for level, block in enumerate(tower.blocks):
            wanted = "windows" if level in windowed else "slots"
            if wanted != now:
                hidden, now = hidden[read[f"into_{wanted}"]], wanted
            hidden = attend_rotated(block.attn, block.norm1(hidden), phases[now], attend[now]).add_(hidden)
            hidden = block.mlp(block.norm2(hidden)).add_(hidden)
        if now != "slots":
            hidden = hidden[read["into_slots"]]
        return EncodedCells(embeddings=tower.merger(hidden))


def windowed_levels(tower: Any) -> frozenset[int]:
    """The layers that attend inside windows; none in Qwen2-VL."""
    levels = range(len(tower.blocks))
    return frozenset(levels) - frozenset(getattr(tower, "fullatt_block_indexes", levels))


def window_order(batch: PatchBatch, side: int) -> tuple[np.ndarray, Segments]:
    """Rows sorted by window, (R,) int64, and the windows as segments.

    side: a window's side in patches; windows are cut from the top left corner of each slot, so that those at the right
    and at the bottom can be smaller. Windows of one size stand together, whichever slot and clip they are of: they are
    attended as one operator. The patches of a cell stay neighbours. Where a slot sees other rows than its own, a window
    sees those that stand in it.

    Worked example, one slot of 2 x 6 patches (cells of 2 x 2) with windows of side 4: cells 0 and 1 are one window of
    8 rows, cell 2 is one of 4 rows and comes first: order [8..11, 0..7], cu_seqlens [0, 4, 12].
    """
    slots = len(batch.cu_seqlens) - 1
    across = int(batch.widths.max()) // side + 1
    down = int(batch.heights.max()) // side + 1

    def windows(segment: np.ndarray, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
        number: np.ndarray = (segment * down + rows // side) * across + cols // side
        return number

    window = windows(np.repeat(np.arange(slots), np.diff(batch.cu_seqlens)), batch.rows, batch.cols)
    used, number, sizes = np.unique(window, return_inverse=True, return_counts=True)
    if batch.keys is None:
        order = np.lexsort((number, sizes[number]))  # by size, then by window; rows of a window keep their order
        return order, Segments(cu_seqlens=_ends(np.sort(sizes)))
    keys = batch.keys
    rows, cols = np.concatenate((keys.rows, batch.rows)), np.concatenate((keys.cols, batch.cols))
    seen = windows(np.repeat(np.arange(slots), np.diff(keys.cu_keys)), rows[keys.index], cols[keys.index])
    place = np.minimum(np.searchsorted(used, seen), len(used) - 1)
    index, place = keys.index[used[place] == seen], place[used[place] == seen]  # a window without rows sees nothing
    key_sizes = np.bincount(place, minlength=len(used))
    ranked = np.lexsort((sizes, key_sizes))
    rank = np.argsort(ranked)
    return np.argsort(rank[number], kind="stable"), Segments(
        cu_seqlens=_ends(sizes[ranked]),
        index=index[np.argsort(rank[place], kind="stable")],
        cu_keys=_ends(key_sizes[ranked]),
    )


def _ends(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
