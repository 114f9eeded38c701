"""A step as kernels with page lists want it: flat int32 lists of pages, lengths of last pages, flat masks. Owns that
arithmetic; knows no kernels and no device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from attention.masks import first_visible, prefix_mask
from attention.protocol import AttentionMetadata, LayerAttention


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PageLists:
    """B sequences. rows_indptr, pages_indptr: (B + 1,) int32, where each one's rows and pages begin. pages: int32.
    last_page_len: (B,) int32, rows of each last page, 1 to page_size. mask: flat bool of each sequence's rows x keys,
    one after the other, where a step has ranges; None where causality and a window say it all."""

    rows_indptr: torch.Tensor
    pages_indptr: torch.Tensor
    pages: torch.Tensor
    last_page_len: torch.Tensor
    mask: torch.Tensor | None


def page_lists(metadata: AttentionMetadata, page_size: int, layer: LayerAttention) -> PageLists:
    """Pages that no row of the step sees are left out, so that all positions are counted from the first page named.

    Worked example, that of AttentionMetadata: rows_indptr [0, 1, 4], pages_indptr [0, 2, 3], pages [7, 2, 5],
    last_page_len [2, 3]. With a window of 2 rows sequence 0 sees rows 4 and 5 alone: pages_indptr [0, 1, 2], pages
    [2, 5], last_page_len as before.
    """
    starts = metadata.seq_lens - np.diff(metadata.cu_seqlens)
    skipped = np.array([first_visible(int(start), layer) // page_size for start in starts], dtype=np.int64)
    stops = -(-metadata.seq_lens // page_size)
    table = metadata.page_table
    pages = [table[row, first:stop] for row, (first, stop) in enumerate(zip(skipped, stops, strict=True))]
    return PageLists(
        rows_indptr=_int32(metadata.cu_seqlens),
        pages_indptr=_int32(np.cumsum([0, *(stops - skipped)])),
        pages=_int32(np.concatenate(pages)),
        last_page_len=_int32((metadata.seq_lens - 1) % page_size + 1),
        mask=_flat_mask(metadata, layer, skipped * page_size) if any(metadata.mm_prefix_ranges) else None,
    )


def _flat_mask(metadata: AttentionMetadata, layer: LayerAttention, key_starts: np.ndarray) -> torch.Tensor:
    counts = np.diff(metadata.cu_seqlens)
    parts = [
        prefix_mask(int(size - count), int(count), int(size), ranges, layer, key_start=int(first)).reshape(-1)
        for count, size, ranges, first in zip(
            counts, metadata.seq_lens, metadata.mm_prefix_ranges, key_starts, strict=True
        )
    ]
    return torch.cat(parts)


def _int32(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int32))
