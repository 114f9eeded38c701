"""Which keys a query may see, as explicit matrices. Owns the rule; knows nothing of pages or kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from attention.protocol import Range


def prefix_mask(query_start: int, num_queries: int, num_keys: int, ranges: Sequence[Range]) -> torch.Tensor:
    """Boolean (num_queries, num_keys): allowed = causal, or query and key inside the same half-open range.

    Queries stand at positions [query_start, query_start + num_queries), keys at [0, num_keys).

    Worked example: query_start 0, 5 queries, 5 keys, ranges [(1, 4)]:

        1 0 0 0 0
        1 1 1 1 0
        1 1 1 1 0
        1 1 1 1 0
        1 1 1 1 1
    """
    query = torch.arange(query_start, query_start + num_queries)[:, None]
    key = torch.arange(num_keys)[None, :]
    allowed = key <= query
    for start, stop in ranges:
        inside = (query >= start) & (query < stop) & (key >= start) & (key < stop)
        allowed = allowed | inside
    return allowed
