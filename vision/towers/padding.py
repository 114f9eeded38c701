"""Batches filled up to a number of patches and of segments. Owns what is put behind a batch, such that no row of it is
touched; knows no tower and not why."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from vision.towers.keys import KeyRows
from vision.towers.packed import PatchBatch
from vision.towers.pooling import CellTaps

# What stands in the pixels of patches that only fill a batch up.
PIXELS = 0.0


def segments_to_fill(batch: PatchBatch, rows: int) -> int:
    """Segments that hold the patches missing to `rows`, none longer than the batch's longest.

    Worked example, segments of 4 and 2 patches, to 15: 9 are missing, which is 3 segments.
    """
    longest = int(np.diff(batch.cu_seqlens).max())
    return -(-(rows - len(batch.rows)) // longest)


def pad_batch(batch: PatchBatch, rows: int, segments: int) -> PatchBatch:
    """Put segments behind the batch, of places like those of its longest one, which see themselves, and then empty
    ones. Pooled cells become as many as patches; those added are of no weight. Nothing may be carried.

    Worked example, segments of 4 and 2 patches, to 15 patches and 6 segments: cu_seqlens [0, 4, 6, 10, 14, 15, 15].
    """
    sizes, have = np.diff(batch.cu_seqlens), len(batch.rows)
    longest = int(sizes.argmax())
    filling = segments_to_fill(batch, rows)
    assert rows >= have and segments >= len(sizes) + filling, (rows, segments)
    first, size = int(batch.cu_seqlens[longest]), int(sizes[longest])
    like = first + np.arange(rows - have) % size
    ends = np.minimum(have + size * np.arange(1, segments - len(sizes) + 1), rows)
    return replace(
        _put_behind(batch, like),
        cu_seqlens=np.concatenate((batch.cu_seqlens, ends)),
        taps=None if batch.taps is None else _pad_taps(batch.taps, rows),
        keys=None if batch.keys is None else _pad_keys(batch.keys, np.arange(have, rows), ends - have),
    )


def lengthen_batch(batch: PatchBatch, rows: int) -> PatchBatch:
    """As pad_batch, for a batch that runs once: what is carried stays, and cells that are pooled stay as many. Where
    segments see keys by number, what is added is queries of the last one, and nobody's keys.

    Worked example, segments of 4 and 2 patches, to 8: cu_seqlens [0, 4, 6, 8]; with keys by number [0, 4, 8], and the
    keys as they were.
    """
    have = len(batch.rows)
    if rows == have:
        return batch
    if batch.keys is None:
        segments = len(batch.cu_seqlens) - 1 + segments_to_fill(batch, rows)
        return replace(pad_batch(replace(batch, taps=None), rows, segments), taps=batch.taps)
    like = np.full(rows - have, have - 1)
    ends = batch.cu_seqlens.copy()
    ends[-1] = rows
    return replace(_put_behind(batch, like), cu_seqlens=ends)


def _put_behind(batch: PatchBatch, like: np.ndarray) -> PatchBatch:
    """Patches of the places of these rows; segments, taps and keys as they were."""
    pixels = torch.full((len(like), batch.pixel_values.shape[1]), PIXELS, dtype=batch.pixel_values.dtype)
    return replace(
        batch,
        pixel_values=torch.cat((batch.pixel_values, pixels)),
        rows=np.concatenate((batch.rows, batch.rows[like])),
        cols=np.concatenate((batch.cols, batch.cols[like])),
        heights=np.concatenate((batch.heights, batch.heights[like])),
        widths=np.concatenate((batch.widths, batch.widths[like])),
    )


def _pad_taps(taps: CellTaps, cells: int) -> CellTaps:
    missing = cells - len(taps)
    return CellTaps(
        patches=np.concatenate((taps.patches, np.zeros((missing, 4), np.int64))),
        weights=np.concatenate((taps.weights, np.zeros((missing, 4), np.float32))),
    )


def _pad_keys(keys: KeyRows, own: np.ndarray, ends: np.ndarray) -> KeyRows:
    assert not len(keys.rows) and not len(keys.carry_on), "what is carried has no place in a padded batch"
    return replace(
        keys,
        index=np.concatenate((keys.index, own)),
        cu_keys=np.concatenate((keys.cu_keys, keys.cu_keys[-1] + ends)),
    )
