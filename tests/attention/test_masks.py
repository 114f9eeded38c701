"""The rule of multimodal prefixes, as the matrices in its docstring."""

from __future__ import annotations

import pytest
import torch

from attention.masks import first_visible, prefix_mask
from attention.protocol import LayerAttention
from tests.attention.dense import is_visible

EXAMPLES = {
    LayerAttention(): [[1, 0, 0, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]],
    LayerAttention(window=2): [[1, 0, 0, 0, 0], [1, 1, 1, 1, 0], [0, 1, 1, 1, 0], [0, 1, 1, 1, 0], [0, 0, 0, 1, 1]],
    LayerAttention(window=2, ranges="in_window"): [
        [1, 0, 0, 0, 0], [1, 1, 1, 1, 0], [0, 1, 1, 1, 0], [0, 0, 1, 1, 0], [0, 0, 0, 1, 1],
    ],
}  # fmt: skip


@pytest.mark.parametrize("layer", EXAMPLES)
def test_mask_is_the_worked_example(layer: LayerAttention) -> None:
    assert prefix_mask(0, 5, 5, [(1, 4)], layer).int().tolist() == EXAMPLES[layer]


@pytest.mark.parametrize("layer", EXAMPLES)
def test_a_chunk_sees_the_same_rows_of_the_whole_mask(layer: LayerAttention) -> None:
    ranges = ((2, 4), (6, 8))
    whole = prefix_mask(0, 9, 9, ranges, layer)
    first = first_visible(6, layer)
    assert torch.equal(prefix_mask(6, 3, 9, ranges, layer, key_start=first), whole[6:, first:])
    assert not whole[6:, :first].any()
    pairs = [[is_visible(q, k, ranges, layer.window, layer.ranges) for k in range(9)] for q in range(9)]
    assert whole.tolist() == pairs


def test_without_ranges_it_is_causal() -> None:
    assert torch.equal(prefix_mask(0, 6, 6, []), torch.ones(6, 6).tril().bool())


def test_first_visible_is_the_worked_example() -> None:
    assert first_visible(10, LayerAttention(window=4)) == 7
    assert first_visible(2, LayerAttention(window=4)) == 0
    assert first_visible(10, LayerAttention()) == 0
