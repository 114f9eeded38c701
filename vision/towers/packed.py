"""The unit of encoder work: patches of some cells of some slots of one clip or image. Owns their places in the picture;
knows nothing of pixels' meaning or of who asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from vision.towers.keys import KeyRows, join_keys, own_keys
from vision.towers.pooling import CellTaps, join_taps


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PatchBatch:
    """R patches in merge-group order: the merge_size**2 patches of a cell are neighbours.

    pixel_values: (R, D_in) float. rows, cols: (R,) int64, place of each patch in its picture. heights, widths: (R,)
    int64, that picture's size in patches. cu_seqlens: (segments + 1,) int64; attention stays inside a segment, unless
    `keys` says what each segment sees. taps: how patches are pooled into cells, where a cell is not a square of
    neighbours.
    """

    pixel_values: torch.Tensor
    rows: np.ndarray
    cols: np.ndarray
    heights: np.ndarray
    widths: np.ndarray
    cu_seqlens: np.ndarray
    taps: CellTaps | None = None
    keys: KeyRows | None = None

    def carrying(self, carried: tuple[torch.Tensor, ...]) -> PatchBatch:
        """The same part of a clip, with the keys and values that its earlier part has left for it."""
        return self if self.keys is None else replace(self, keys=self.keys.carrying(carried))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedCells:
    """N cells as the language model reads them: embeddings (N, D); planes: deepstack levels, each (N, D); carry: what
    the clips' next parts will read, see Sight."""

    embeddings: torch.Tensor
    planes: tuple[torch.Tensor, ...] = ()
    carry: tuple[torch.Tensor, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in (self.embeddings, *self.planes))


def patch_places(height: int, width: int, merge_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column, in patches, of one slot's patches in merge-group order: two (height * width,) int64 arrays.

    Worked example, 2 x 4 patches, merge 2: rows [0, 0, 1, 1, 0, 0, 1, 1], columns [0, 1, 0, 1, 2, 3, 2, 3].
    """

    def grouped(index: np.ndarray) -> np.ndarray:
        blocks = index.reshape(height // merge_size, merge_size, width // merge_size, merge_size)
        return blocks.transpose(0, 2, 1, 3).reshape(-1)

    rows, cols = np.indices((height, width))
    return grouped(rows), grouped(cols)


def concatenate(batches: Sequence[PatchBatch]) -> PatchBatch:
    """One batch of several, segments kept apart."""
    keys = [batch.keys or own_keys(batch.cu_seqlens) for batch in batches]
    offsets = np.cumsum([0, *(len(batch.rows) for batch in batches)])
    ends = [batch.cu_seqlens[1:] + offset for batch, offset in zip(batches, offsets, strict=False)]
    pairs = zip(batches, offsets.tolist(), strict=False)
    taps = [batch.taps.shifted(offset) for batch, offset in pairs if batch.taps is not None]
    return PatchBatch(
        pixel_values=torch.cat([batch.pixel_values for batch in batches]),
        rows=np.concatenate([batch.rows for batch in batches]),
        cols=np.concatenate([batch.cols for batch in batches]),
        heights=np.concatenate([batch.heights for batch in batches]),
        widths=np.concatenate([batch.widths for batch in batches]),
        cu_seqlens=np.concatenate([np.zeros(1, np.int64), *ends]),
        taps=join_taps(taps) if taps else None,
        keys=join_keys(keys, [len(batch.rows) for batch in batches]) if any(batch.keys for batch in batches) else None,
    )


def embed_patches(conv: Any, pixel_values: torch.Tensor) -> torch.Tensor:
    """(R, D_in) -> (R, D): a convolution whose stride is its kernel, as the product that it is."""
    weight = conv.weight.flatten(1)
    return F.linear(pixel_values.to(weight), weight, conv.bias)
