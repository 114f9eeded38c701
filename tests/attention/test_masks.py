"""The rule of multimodal prefixes, as the matrix in its docstring."""

from __future__ import annotations

import torch

from attention.masks import prefix_mask


def test_mask_is_the_worked_example() -> None:
    expected = [[1, 0, 0, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert prefix_mask(0, 5, 5, [(1, 4)]).int().tolist() == expected


def test_a_chunk_sees_the_same_rows_of_the_whole_mask() -> None:
    whole = prefix_mask(0, 9, 9, [(2, 4), (6, 8)])
    assert torch.equal(prefix_mask(6, 3, 9, [(2, 4), (6, 8)]), whole[6:])


def test_without_ranges_it_is_causal() -> None:
    assert torch.equal(prefix_mask(0, 6, 6, []), torch.ones(6, 6).tril().bool())
