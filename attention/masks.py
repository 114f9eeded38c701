"""Which keys a query may see, as explicit matrices. Owns the rule; knows nothing of pages or kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from attention.protocol import LayerAttention, Range

EVERYTHING = LayerAttention()


def prefix_mask(
    query_start: int,
    num_queries: int,
    num_keys: int,
    ranges: Sequence[Range],
    layer: LayerAttention = EVERYTHING,
    *,
    key_start: int = 0,
) -> torch.Tensor:
    """Boolean (num_queries, num_keys - key_start): allowed = (causal and in the window), or query and key inside the
    same half-open range; with `layer.ranges` "in_window", (causal, or inside the same range) and in the window.

    Queries stand at positions [query_start, query_start + num_queries), keys at [key_start, num_keys).

    Worked example: query_start 0, 5 queries, 5 keys, ranges [(1, 4)]; then the same with a window of 2; then with that
    window over ranges, too:

        1 0 0 0 0    1 0 0 0 0    1 0 0 0 0
        1 1 1 1 0    1 1 1 1 0    1 1 1 1 0
        1 1 1 1 0    0 1 1 1 0    0 1 1 1 0
        1 1 1 1 0    0 1 1 1 0    0 0 1 1 0
        1 1 1 1 1    0 0 0 1 1    0 0 0 1 1
    """
    query = torch.arange(query_start, query_start + num_queries)[:, None]
    key = torch.arange(key_start, num_keys)[None, :]
    is_near = key > query - layer.window if layer.window is not None else torch.ones_like(key, dtype=torch.bool)
    allowed = (key <= query) & is_near
    for start, stop in ranges:
        inside = (query >= start) & (query < stop) & (key >= start) & (key < stop)
        allowed = allowed | (inside if layer.ranges == "whole" else inside & is_near)
    return allowed


def first_visible(query_start: int, layer: LayerAttention) -> int:
    """The first position that a query at query_start or later may see; a range that begins before query_start is no
    affair of such queries, for ranges are never split.

    Worked example: window 4, query_start 10: 7, for the query at 10 sees 7, 8, 9 and itself.
    """
    return 0 if layer.window is None else max(0, query_start - layer.window + 1)
