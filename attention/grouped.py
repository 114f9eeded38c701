"""Attention in an encoder whose rows see other rows than their neighbours: keys are gathered, and segments of about one
size run as one operator. Owns the grouping; knows neither slots and windows nor who asked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from attention.many import attend_segments
from attention.packed import Attend, plan_packed

# Operators over neighbouring rows that are worth more than gathering rows into fewer.
FEW_RUNS = 4
# Segments join an operator as long as what is padded stays below this share of it, or below this many pairs of a query
# and a key, which cost less than another operator.
PADDED_SHARE = 0.3
PADDED_PAIRS = 1 << 13
# Keys that one operator gathers: it bounds memory, and they are still in the cache when they are read.
GATHERED_KEYS = 8192

Rows = slice | torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """`count` segments as one operator of `queries` rows by `keys` rows each.

    query_rows: (count * queries,), key_rows: (count * keys,); shorter segments repeat a row. mask: (count, 1, 1, keys)
    bool, which keys are no repetition; None where none is. places: (rows,) int64, of count * queries those that are
    rows, in the order of `rows`, the rows that come out.
    """

    count: int
    queries: int
    keys: int
    query_rows: np.ndarray
    key_rows: np.ndarray
    mask: np.ndarray | None
    places: np.ndarray
    rows: np.ndarray


def plan_grouped(cu_seqlens: np.ndarray, index: np.ndarray | None, cu_keys: np.ndarray | None) -> Attend:
    """A function attend(q, k, v, scale) in which rows [cu_seqlens[i], cu_seqlens[i + 1]) of q (R, H, K) see rows
    index[cu_keys[i] : cu_keys[i + 1]] of k and v (n, H, K); each other, where index is None."""
    changes = np.count_nonzero(np.diff(np.diff(cu_seqlens)))
    if index is None and changes < FEW_RUNS:
        return plan_packed(cu_seqlens)
    if index is None or cu_keys is None:
        index, cu_keys = np.arange(cu_seqlens[-1]), cu_seqlens
    groups = group_segments(cu_seqlens, index, cu_keys)
    places = _places(groups)
    prepared: list[_Operator] = []

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        if not prepared:
            prepared.extend(_Operator(group, q.device) for group in groups)
        out = [operator.run(q, k, v, scale) for operator in prepared]
        joined = out[0] if len(out) == 1 else torch.cat(out)
        return joined if places is None else joined.index_select(0, places.to(q.device))

    return attend


def group_segments(cu_seqlens: np.ndarray, index: np.ndarray, cu_keys: np.ndarray) -> list[Group]:
    """Segments of about one size together, few groups in all.

    Worked example, segments of 3, 1 and 3 rows that see themselves: the two of 3 rows are one group of 2 x 3 x 3; the
    one of 1 row joins it, as 8 padded pairs are few: one group of 3 x 3 x 3, whose mask drops 2 keys of the first.
    """
    query_sizes, key_sizes = np.diff(cu_seqlens), np.diff(cu_keys)
    order = np.lexsort((query_sizes, key_sizes))
    order = order[query_sizes[order] > 0]
    groups: list[Group] = []
    start = 0
    while start < len(order):
        stop = start + _fitting(query_sizes[order[start:]], key_sizes[order[start:]])
        groups.append(_group(order[start:stop], cu_seqlens, cu_keys, index))
        start = stop
    return groups


def _fitting(queries: np.ndarray, keys: np.ndarray) -> int:
    """How many of the first segments one group takes, at least one."""
    count = np.arange(1, len(queries) + 1)
    padded = count * np.maximum.accumulate(queries) * np.maximum.accumulate(keys)
    wasted = padded - np.cumsum(queries * keys)
    fits = (wasted <= np.maximum(PADDED_SHARE * padded, PADDED_PAIRS)) & (
        count * np.maximum.accumulate(keys) <= GATHERED_KEYS
    )
    return max(1, int(np.argmin(fits)) if not fits.all() else len(queries))


def _group(chosen: np.ndarray, cu_queries: np.ndarray, cu_keys: np.ndarray, index: np.ndarray) -> Group:
    query_places, has_row = _padded(cu_queries[chosen], cu_queries[chosen + 1])
    key_places, has_key = _padded(cu_keys[chosen], cu_keys[chosen + 1])
    return Group(
        count=len(chosen),
        queries=query_places.shape[1],
        keys=key_places.shape[1],
        query_rows=query_places.reshape(-1),
        key_rows=index[key_places.reshape(-1)],
        mask=None if has_key.all() else has_key[:, None, None],
        places=np.flatnonzero(has_row),
        rows=query_places[has_row],
    )


def _padded(starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(segments, longest) numbers from each start on, the last one repeated; and which of them are no repetition."""
    numbers = starts[:, None] + np.arange((stops - starts).max())
    return np.minimum(numbers, stops[:, None] - 1), numbers < stops[:, None]


def _places(groups: list[Group]) -> torch.Tensor | None:
    """(R,) where each row stands in the groups' outputs, one behind the other; None where it is as they come."""
    before = np.cumsum([0, *(group.count * group.queries for group in groups)])
    rows = np.concatenate([group.rows for group in groups])
    found = np.concatenate([group.places + start for group, start in zip(groups, before, strict=False)])
    places = found[np.argsort(rows)]
    return None if np.array_equal(places, np.arange(before[-1])) else torch.from_numpy(places)


class _Operator:
    """A group with its indices on the device; rows that are neighbours are read where they stand."""

    def __init__(self, group: Group, device: torch.device) -> None:
        self._group = group
        self._queries, self._keys = _on_device(group.query_rows, device), _on_device(group.key_rows, device)
        self._mask = None if group.mask is None else torch.from_numpy(group.mask).to(device)

    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        """(count * queries, H, K)."""

        q, k, v = _take(q, self._queries), _take(k, self._keys), _take(v, self._keys)
        if self._mask is None:
            found = attend_segments(q, k, v, scale, count=self._group.count)
            if found is not None:
                return found

        def batched(x: torch.Tensor) -> torch.Tensor:  # (count, H, length, K)
            return x.view(self._group.count, -1, *x.shape[1:]).transpose(1, 2)

        out = F.scaled_dot_product_attention(batched(q), batched(k), batched(v), attn_mask=self._mask, scale=scale)
        return out.transpose(1, 2).flatten(0, 1)


def _on_device(rows: np.ndarray, device: torch.device) -> Rows:
    if np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows))):
        return slice(int(rows[0]), int(rows[0]) + len(rows))
    return torch.from_numpy(rows).to(device)


def _take(x: torch.Tensor, rows: Rows) -> torch.Tensor:
    return x[rows] if isinstance(rows, slice) else x.index_select(0, rows)
