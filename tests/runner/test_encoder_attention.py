"""Rows see their segment's keys and no others, in few operators however many segments there are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from runner import encoder_attention
from runner.encoder_attention import group_segments, plan_segments
from tests.attention.dense import dense_attention
from vision.towers.keys import Segments


def ends(sizes: list[int]) -> np.ndarray:
    return np.cumsum([0, *sizes])


def check(segments: Segments, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    index, cu_keys = segments.keys()
    q = torch.randn(int(segments.cu_seqlens[-1]), 3, 8, generator=generator)
    k, v = (torch.randn(int(index.max()) + 3, 3, 8, generator=generator) for _ in range(2))
    if segments.index is None:
        k, v = k[: len(q)], v[: len(q)]
    out = plan_segments(segments)(q, k, v, 0.3)
    assert out.shape == q.shape
    for number in range(len(cu_keys) - 1):
        rows = slice(int(segments.cu_seqlens[number]), int(segments.cu_seqlens[number + 1]))
        keys = torch.from_numpy(index[cu_keys[number] : cu_keys[number + 1]])
        if rows.start < rows.stop:
            seen = torch.ones(rows.stop - rows.start, len(keys)).bool()
            expected = dense_attention(q[rows], k[keys], v[keys], seen, 0.3)
            assert (out[rows] - expected).abs().max() < 1e-5


@pytest.mark.parametrize("sizes", [[3, 1, 3], [5], [4, 4, 4], [7, 1, 2, 9, 4, 4, 30, 2], [1] * 20, [64, 3, 64, 3]])
def test_segments_that_see_themselves(sizes: list[int]) -> None:
    check(Segments(cu_seqlens=ends(sizes)), len(sizes))


@pytest.mark.parametrize("seed", range(8))
def test_segments_that_see_any_keys(seed: int) -> None:
    """Any numbers of rows and of keys, keys in any order, shared, and some that nobody sees."""
    rng = np.random.default_rng(seed)
    queries, keys = rng.integers(0, 40, 12), rng.integers(1, 60, 12)
    index = rng.integers(0, 50, keys.sum())
    check(Segments(cu_seqlens=ends(queries.tolist()), index=index, cu_keys=ends(keys.tolist())), seed)


def test_the_worked_example() -> None:
    (group,) = group_segments(Segments(cu_seqlens=ends([3, 1, 3])))
    assert (group.count, group.queries, group.keys) == (3, 3, 3)
    assert group.mask is not None
    assert group.mask[:, 0, 0].tolist() == [[True, False, False], [True] * 3, [True] * 3]


def test_many_segments_are_few_operators() -> None:
    """As many as there are sizes to tell apart, not as there are segments; none gathers more keys than the bound."""
    rng = np.random.default_rng(0)
    queries = rng.integers(1, 65, 3000) * 4
    keys = np.where(rng.random(3000) < 0.7, 256, 128)
    segments = Segments(cu_seqlens=ends(queries.tolist()), index=rng.integers(0, 9000, keys.sum()), cu_keys=ends(keys))
    groups = group_segments(segments)
    gathered = [group.count * group.keys for group in groups]
    assert max(gathered) <= encoder_attention.GATHERED_KEYS
    assert len(groups) < 2 * sum(gathered) / encoder_attention.GATHERED_KEYS + 40
    padded = sum(group.count * group.queries * group.keys for group in groups)
    assert padded < 1.45 * int((queries * keys).sum())
