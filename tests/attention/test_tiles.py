"""Tiles give every row its segment's keys and no others, in any shape that is large enough."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attention import tiles
from attention.tiles import TiledAttention, TileShape, cut_tiles, fitting_tiles
from tests.attention.dense import dense_attention


def ends(sizes: list[int]) -> np.ndarray:
    return np.cumsum([0, *sizes])


def test_the_worked_examples() -> None:
    long = ends([3, 300])
    assert fitting_tiles(long, long) == TileShape(rows=303, tiles=3, queries=150, keys=300)
    short = ends([3, 1])
    cut = cut_tiles(TileShape(rows=4, tiles=4, queries=2, keys=3), short, np.arange(4), short)
    assert cut.query_rows.reshape(-1, 2).tolist() == [[0, 1], [2, 2], [3, 3], [0, 0]]
    assert cut.key_rows.reshape(-1, 3).tolist() == [[0, 1, 2], [0, 1, 2], [3, 3, 3], [0, 0, 0]]
    assert cut.seen[:, 0, 0].tolist() == [[True] * 3, [True] * 3, [True, False, False], [True] * 3]
    assert cut.places.tolist() == [0, 1, 2, 4]


def test_one_shape_serves_all_segments_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any numbers of rows and keys, empty segments and shared keys among them, over the same tensors."""
    monkeypatch.setattr(tiles, "LONGEST_TILE", 8)
    rng = np.random.default_rng(0)
    attention = TiledAttention(TileShape(rows=60, tiles=40, queries=8, keys=24), torch.device("cpu"))
    for _ in range(6):
        sizes = rng.multinomial(60, np.ones(9) / 9)
        sizes[rng.integers(9)] = 0
        sizes[0] += 60 - sizes.sum()
        keys = rng.integers(1, 24, 9)
        cu_seqlens, cu_keys = ends(sizes.tolist()), ends(keys.tolist())
        index = rng.integers(0, 60, cu_keys[-1])
        exact = fitting_tiles(cu_seqlens, cu_keys)
        assert exact.tiles <= 40 and exact.queries <= 8 and exact.keys <= 24
        attention.load(cut_tiles(attention.shape, cu_seqlens, index, cu_keys))
        q, k, v = torch.randn(3, 60, 2, 8)
        out = attention.attend(q, k, v, 0.3)
        for number in range(9):
            rows = slice(int(cu_seqlens[number]), int(cu_seqlens[number + 1]))
            own = torch.from_numpy(index[cu_keys[number] : cu_keys[number + 1]])
            if sizes[number]:
                everything = torch.ones(int(sizes[number]), len(own)).bool()
                assert (out[rows] - dense_attention(q[rows], k[own], v[own], everything, 0.3)).abs().max() < 1e-5
