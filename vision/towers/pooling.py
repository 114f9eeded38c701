"""Cells that are weighted sums of patches: bilinear pooling, and pictures put together from tiles. Owns which patches a
cell reads and how much of each; knows nothing of pixels, models or who asked.

A family whose cells are whole squares of patches needs none of this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CellTaps:
    """patches: (N, 4) int64, the patches that each of N cells reads; weights: (N, 4) float32, how much of each."""

    patches: np.ndarray
    weights: np.ndarray

    def __len__(self) -> int:
        return len(self.patches)

    def shifted(self, patches: int) -> CellTaps:
        """The same cells of patches that stand `patches` rows later."""
        return CellTaps(patches=self.patches + patches, weights=self.weights)

    def of(self, cells: np.ndarray) -> CellTaps:
        """These cells alone, by number."""
        return CellTaps(patches=self.patches[cells], weights=self.weights[cells])

    def renumbered(self, numbers: np.ndarray) -> CellTaps:
        """The same cells where patch i is row numbers[i]; a patch of number -1 is not there, and none may count on it:
        its taps, of no weight, read row 0."""
        patches = numbers[self.patches]
        assert not self.weights[patches < 0].any(), "a cell reads a patch that is not there"
        return CellTaps(patches=np.maximum(patches, 0), weights=self.weights)

    def pool(self, features: torch.Tensor) -> torch.Tensor:
        """(R, D) of patches to (N, D) of cells."""
        index, weights = torch.from_numpy(self.patches), torch.from_numpy(self.weights)
        return pool_taps(features, index.to(features.device), weights.to(features.device))


def pool_taps(features: torch.Tensor, patches: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """(R, D) of patches to (N, D) of cells; patches, weights: (N, 4)."""
    return (features[patches] * weights.to(features.dtype)[:, :, None]).sum(1)


def join_taps(parts: list[CellTaps]) -> CellTaps:
    return CellTaps(
        patches=np.concatenate([part.patches for part in parts]),
        weights=np.concatenate([part.weights for part in parts]),
    )


def resample(patches: np.ndarray, size: tuple[int, int]) -> CellTaps:
    """Cells of a grid of `size` over a grid of patches, bilinear, pixel centres on pixel centres.

    patches: (h, w) int64, which patch stands at each place. Of the same size, each cell is its own patch. As
    `torch.nn.functional.interpolate` of mode "bilinear" does.

    Worked example, one row of 4 patches to 2 cells: cell 0 is half of patch 0 and half of patch 1. 3 patches to 2
    cells: the centres fall on 0.25 and 1.75, so cell 0 is 0.75 of patch 0 and 0.25 of patch 1.
    """
    row_low, row_high, row_share = _line_taps(patches.shape[0], size[0])
    col_low, col_high, col_share = _line_taps(patches.shape[1], size[1])
    rows = (row_low, 1 - row_share), (row_high, row_share)
    cols = (col_low, 1 - col_share), (col_high, col_share)
    corners = [(patches[np.ix_(row, col)], np.outer(a, b)) for row, a in rows for col, b in cols]
    return CellTaps(
        patches=np.stack([index.reshape(-1) for index, _ in corners], axis=1),
        weights=np.stack([weight.reshape(-1) for _, weight in corners], axis=1).astype(np.float32),
    )


def _line_taps(length: int, cells: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Patch before each cell's centre, patch after it, share of the one after: three (cells,) arrays."""
    scale = np.float32(length) / np.float32(max(cells, 1))
    centre = (np.arange(cells, dtype=np.float32) + np.float32(0.5)) * scale - np.float32(0.5)
    centre = np.maximum(centre, np.float32(0))
    low = np.minimum(np.floor(centre).astype(np.int64), length - 1)
    return low, np.minimum(low + 1, length - 1), (centre - low).astype(np.float32)


def tile_places(tiles: tuple[int, int], side: int) -> np.ndarray:
    """(rows * side, columns * side) int64: which patch stands where on a canvas of tiles of side x side patches, when
    patches stand tile by tile.

    Worked example, one row of two tiles of 2 x 2: [[0, 1, 4, 5], [2, 3, 6, 7]].
    """
    rows, columns = tiles
    numbers = np.arange(rows * columns * side * side).reshape(rows, columns, side, side)
    return numbers.transpose(0, 2, 1, 3).reshape(rows * side, columns * side)


def unpad(places: np.ndarray, picture: tuple[int, int]) -> np.ndarray:
    """Leave out the rows or columns of a canvas that hold margins only. picture: its (height, width) in pixels.

    Worked example, a canvas of 8 x 8 places and a picture of 100 x 50: 8 * 50 / 100 = 4 columns hold it, so columns 2
    to 5 stay.
    """
    height, width = places.shape
    if picture[1] / picture[0] > width / height:
        inner = int(round(picture[0] * (width / picture[1]), 7))
        margin = (height - inner) // 2
        return places[margin : height - margin]
    inner = int(round(picture[1] * (height / picture[0]), 7))
    margin = (width - inner) // 2
    return places[:, margin : width - margin]


def bounded_size(size: tuple[int, int], most: int) -> tuple[int, int]:
    """(h, w) when that is at most about `most` places, else scaled down to it; slightly more (1.1 ** 2) is let be.

    Worked example, (60, 30) and 1000: sqrt(1800 / 1000) = 1.34, so (44, 22).
    """
    height, width = size
    ratio = math.sqrt(height * width / most)
    return (int(height // ratio), int(width // ratio)) if ratio > 1.1 else size
