"""Attention in an encoder as one operator of a shape that says little of its segments: queries go in tiles of one
length, each beside all keys of its segment. Owns the arithmetic and the tensors that hold it, which keep their
addresses; knows neither pages nor what a segment is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

# Rows of a tile at most: a longer segment is cut into tiles of about one length, and its keys are gathered for each.
LONGEST_TILE = 256


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class TileShape:
    """`tiles` tiles of `queries` rows, each beside `keys` keys at most, for `rows` rows in all."""

    rows: int
    tiles: int
    queries: int
    keys: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tiles:
    """query_rows: (tiles * queries,), key_rows: (tiles * keys,) int64, what is shorter repeats a row. seen: (tiles, 1,
    1, keys) bool, which keys are no repetition. places: (rows,) int64, where each row stands among tiles * queries."""

    query_rows: np.ndarray
    key_rows: np.ndarray
    seen: np.ndarray
    places: np.ndarray


def fitting_tiles(cu_seqlens: np.ndarray, cu_keys: np.ndarray) -> TileShape:
    """The smallest shape that holds these segments.

    Worked example, segments of 3 and 300 rows that see themselves: the longest is cut in two, so that tiles have 150
    rows; there are 3, with at most 300 keys.
    """
    sizes = np.diff(cu_seqlens)
    longest = int(sizes.max())
    queries = -(-longest // -(-longest // LONGEST_TILE))
    return TileShape(
        rows=int(cu_seqlens[-1]),
        tiles=int((-(-sizes // queries)).sum()),
        queries=queries,
        keys=int(np.diff(cu_keys)[sizes > 0].max()),
    )


def cut_tiles(shape: TileShape, cu_seqlens: np.ndarray, index: np.ndarray, cu_keys: np.ndarray) -> Tiles:
    """Rows [cu_seqlens[i], cu_seqlens[i + 1]) see keys index[cu_keys[i] : cu_keys[i + 1]]. Tiles that nobody needs read
    row 0 and are read by nobody.

    Worked example, shape of 3 tiles x 2 queries x 3 keys, segments of 3 and 1 rows that see themselves: tiles of rows
    (0, 1), (2, 2), (3, 3) beside keys (0, 1, 2), (0, 1, 2), (3, 3, 3), of which the last is seen once; rows stand at
    places 0, 1, 2, 4.
    """
    counts = -(-np.diff(cu_seqlens) // shape.queries)
    segment = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(segment)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = cu_seqlens[segment] + within * shape.queries
    rows = starts[:, None] + np.arange(shape.queries)
    ends = cu_seqlens[segment + 1][:, None]
    keys = cu_keys[segment][:, None] + np.arange(shape.keys)
    key_ends = cu_keys[segment + 1][:, None]
    query_rows = np.zeros((shape.tiles, shape.queries), dtype=np.int64)
    key_rows = np.zeros((shape.tiles, shape.keys), dtype=np.int64)
    seen = np.ones((shape.tiles, shape.keys), dtype=np.bool_)
    used = len(segment)
    query_rows[:used] = np.minimum(rows, ends - 1)
    key_rows[:used] = index[np.minimum(keys, key_ends - 1)]
    seen[:used] = keys < key_ends
    return Tiles(
        query_rows=query_rows.reshape(-1),
        key_rows=key_rows.reshape(-1),
        seen=seen[:, None, None],
        places=np.flatnonzero(rows < ends),
    )


class TiledAttention:
    """The tensors of one shape, and the attention that reads them and nothing else."""

    def __init__(self, shape: TileShape, device: torch.device) -> None:
        self.shape = shape
        self._query_rows = torch.zeros(shape.tiles * shape.queries, dtype=torch.int64, device=device)
        self._key_rows = torch.zeros(shape.tiles * shape.keys, dtype=torch.int64, device=device)
        self._seen = torch.ones((shape.tiles, 1, 1, shape.keys), dtype=torch.bool, device=device)
        self._places = torch.zeros(shape.rows, dtype=torch.int64, device=device)

    def load(self, tiles: Tiles) -> None:
        pairs = (
            (self._query_rows, tiles.query_rows), (self._key_rows, tiles.key_rows), (self._seen, tiles.seen),
            (self._places, tiles.places),
        )  # fmt: skip
        for kept, array in pairs:
            kept.copy_(torch.from_numpy(array))

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        """q, k, v: (rows, H, K) -> (rows, H, K)."""

        def batched(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:  # (tiles, H, length, K)
            return x.index_select(0, rows).view(self.shape.tiles, -1, *x.shape[1:]).transpose(1, 2)

        k, v = batched(k, self._key_rows), batched(v, self._key_rows)
        out = F.scaled_dot_product_attention(batched(q, self._query_rows), k, v, attn_mask=self._seen, scale=scale)
        return out.transpose(1, 2).flatten(0, 1).index_select(0, self._places)
