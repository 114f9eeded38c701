"""The mean colours of the 8 x 8 sub-blocks of cells: all that the gate sees of a clip. Owns the cutting of cells into
blocks; knows nothing of thresholds or of what is kept.

Every block of a clip has the same size, so that noise weighs the same in each: a side that 8 does not divide gets one
last block set flush with its end, overlapping the one before. 28 pixels are cut at 0, 8, 16 and 20.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np
import numpy.typing as npt

from evs.cells import CellGrid, Span

BLOCK_SIDE = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockMeans:
    """means: (T, J, P) int32, in units of 1 / `white`; j runs over the frames of a slot, four planes and the blocks.

    The planes are grey, the mean over the block's pixels and their three channels, and for each channel half of how
    far its own mean lies from that grey. Half, because a change of colour at equal brightness is harder to see, and
    noisier: codecs keep colour at a quarter of the resolution.

    Worked example: a red block (200, 50, 50) has the planes 100, 50, -25, -25 in 255ths, a green one (50, 200, 50)
    has 100, -25, 50, -25: they differ by 75, which a mean over the channels alone would not see.
    """

    means: npt.NDArray[np.int32]
    white: int


def block_starts(spans: Sequence[Span]) -> tuple[int, npt.NDArray[np.intp]]:
    """(side, starts): the blocks of each span along one axis, starts (spans, n); a span short of n repeats its last.

    The side is 8, or the shortest span where that is smaller.
    Worked example: spans ((0, 28), (28, 48)) give side 8 and starts [[0, 8, 16, 20], [28, 36, 40, 40]].
    """
    side = min(BLOCK_SIDE, *(stop - start for start, stop in spans))
    most = max(-(-(stop - start) // side) for start, stop in spans)
    starts = [[min(start + side * place, stop - side) for place in range(most)] for start, stop in spans]
    return side, np.array(starts, dtype=np.intp)


def measure_blocks(pixels: npt.NDArray[np.uint8], cells: CellGrid) -> BlockMeans:
    """Measure every block of every cell, exactly; pixels (T * frames_per_slot, C, H, W)."""
    if pixels.dtype != np.uint8:
        raise ValueError(f"pixels must be uint8, resized and not yet normalised, got {pixels.dtype}")
    slots, (frames, channels, *_) = cells.slots_of(pixels.shape), pixels.shape
    height, rows = block_starts(cells.rows)
    width, columns = block_starts(cells.columns)
    tile = gcd(height, *rows.flat), gcd(width, *columns.flat)
    reach = int(rows.max()) + height, int(columns.max()) + width
    windows_across = (reach[1] - width) // tile[1] + 1
    # Which window is block (n, m) of cell (h, w): (n, h, m, w) to (n, m, h, w), flat.
    places = rows.T[:, None, :, None] // tile[0] * windows_across + columns.T[None, :, None, :] // tile[1]
    sums = np.empty((frames, channels, places.size), dtype=np.int32)
    for frame, out in zip(pixels, sums, strict=True):
        windows = _sum_windows(frame[:, : reach[0], : reach[1]], tile, (height // tile[0], width // tile[1]))
        out[...] = windows.reshape(channels, -1)[:, places.reshape(-1)]
    grey = sums.sum(1, keepdims=True, dtype=np.int32)
    planes = np.concatenate([2 * grey, channels * sums - grey], axis=1)
    return BlockMeans(means=planes.reshape(slots, -1, cells.cells_per_slot), white=2 * channels * 255 * height * width)


def _sum_windows(frame: npt.NDArray[np.uint8], tile: tuple[int, int], span: tuple[int, int]) -> npt.NDArray[np.uint16]:
    """Sums of the pixels of one frame (C, H, W) over every window of `span` tiles that starts at a tile.

    The tile is the coarsest of which all blocks are made. One frame at a time stays in the processor's cache, and a
    window sums to at most 8 * 8 * 255, which fits 16 bits.
    """
    rows = _add_up([frame[:, place :: tile[0]] for place in range(tile[0])])
    tiles = _add_up([rows[..., place :: tile[1]] for place in range(tile[1])])
    down, across = tiles.shape[1] - span[0] + 1, tiles.shape[2] - span[1] + 1
    bands = _add_up([tiles[:, place : place + down] for place in range(span[0])])
    return _add_up([bands[..., place : place + across] for place in range(span[1])])


def _add_up(parts: Sequence[npt.NDArray[np.integer]]) -> npt.NDArray[np.uint16]:
    total = parts[0].astype(np.uint16)
    for part in parts[1:]:
        total += part
    return total
