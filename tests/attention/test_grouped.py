"""Rows see their segment's keys and no others, in few operators however many segments there are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attention import grouped
from attention.grouped import group_segments, plan_grouped
from tests.attention.dense import dense_attention


def ends(sizes: list[int]) -> np.ndarray:
    return np.cumsum([0, *sizes])


def check(cu_seqlens: np.ndarray, found: np.ndarray | None, cu_found: np.ndarray | None, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    index, cu_keys = (np.arange(cu_seqlens[-1]), cu_seqlens) if found is None or cu_found is None else (found, cu_found)
    q = torch.randn(int(cu_seqlens[-1]), 3, 8, generator=generator)
    k, v = (torch.randn(int(index.max()) + 3, 3, 8, generator=generator) for _ in range(2))
    if found is None:
        k, v = k[: len(q)], v[: len(q)]
    out = plan_grouped(cu_seqlens, found, cu_found)(q, k, v, 0.3)
    assert out.shape == q.shape
    for number in range(len(cu_keys) - 1):
        rows = slice(int(cu_seqlens[number]), int(cu_seqlens[number + 1]))
        keys = torch.from_numpy(index[cu_keys[number] : cu_keys[number + 1]])
        if rows.start < rows.stop:
            seen = torch.ones(rows.stop - rows.start, len(keys)).bool()
            expected = dense_attention(q[rows], k[keys], v[keys], seen, 0.3)
            assert (out[rows] - expected).abs().max() < 1e-5


@pytest.mark.parametrize("sizes", [[3, 1, 3], [5], [4, 4, 4], [7, 1, 2, 9, 4, 4, 30, 2], [1] * 20, [64, 3, 64, 3]])
def test_segments_that_see_themselves(sizes: list[int]) -> None:
    check(ends(sizes), None, None, len(sizes))


@pytest.mark.parametrize("seed", range(8))
def test_segments_that_see_any_keys(seed: int) -> None:
    """Any numbers of rows and of keys, keys in any order, shared, and some that nobody sees."""
    rng = np.random.default_rng(seed)
    queries, keys = rng.integers(0, 40, 12), rng.integers(1, 60, 12)
    index = rng.integers(0, 50, keys.sum())
    check(ends(queries.tolist()), index, ends(keys.tolist()), seed)


def test_the_worked_example() -> None:
    (group,) = group_segments(ends([3, 1, 3]), np.arange(7), ends([3, 1, 3]))
    assert (group.count, group.queries, group.keys) == (3, 3, 3)
    assert group.mask is not None
    assert group.mask[:, 0, 0].tolist() == [[True, False, False], [True] * 3, [True] * 3]


def test_many_segments_are_few_operators() -> None:
    """As many as there are sizes to tell apart, not as there are segments; none gathers more keys than the bound."""
    rng = np.random.default_rng(0)
    queries = rng.integers(1, 65, 3000) * 4
    keys = np.where(rng.random(3000) < 0.7, 256, 128)
    groups = group_segments(ends(queries.tolist()), rng.integers(0, 9000, keys.sum()), ends(keys))
    gathered = [group.count * group.keys for group in groups]
    assert max(gathered) <= grouped.GATHERED_KEYS
    assert len(groups) < 2 * sum(gathered) / grouped.GATHERED_KEYS + 40
    padded = sum(group.count * group.queries * group.keys for group in groups)
    assert padded < 1.45 * int((queries * keys).sum())
