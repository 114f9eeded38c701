"""Pooled cells are what torch's bilinear interpolation makes of their patches; tiles come back as one picture."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vision.towers.pooling import bounded_size, join_taps, resample, tile_places, unpad


def grid_of(height: int, width: int) -> np.ndarray:
    return np.arange(height * width).reshape(height, width)


def test_worked_examples() -> None:
    halves = resample(grid_of(1, 4), (1, 2))
    assert halves.pool(torch.tensor([[2.0], [4.0], [6.0], [8.0]])).tolist() == [[3.0], [7.0]]
    thirds = resample(grid_of(1, 3), (1, 2))
    assert thirds.pool(torch.tensor([[4.0], [8.0], [12.0]])).tolist() == [[5.0], [11.0]]
    assert tile_places((1, 2), 2).tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert unpad(grid_of(8, 8), (100, 50)).tolist() == grid_of(8, 8)[:, 2:6].tolist()
    assert bounded_size((60, 30), 1000) == (44, 22)
    assert bounded_size((33, 33), 1000) == (33, 33)


@pytest.mark.parametrize("size", [(27, 27, 14, 14), (5, 5, 3, 3), (54, 81, 30, 45), (4, 1, 2, 1), (7, 9, 7, 9)])
def test_resampling_equals_interpolation(size: tuple[int, int, int, int]) -> None:
    height, width, to_height, to_width = size
    features = torch.randn(height * width, 6, generator=torch.Generator().manual_seed(0))
    picture = features.T.reshape(1, 6, height, width)
    expected = F.interpolate(picture, (to_height, to_width), mode="bilinear")[0].flatten(1).T
    pooled = resample(grid_of(height, width), (to_height, to_width)).pool(features)
    torch.testing.assert_close(pooled, expected, atol=1e-5, rtol=0)


def test_of_the_same_size_a_cell_is_its_patch() -> None:
    places = np.random.default_rng(0).permutation(20).reshape(4, 5)
    features = torch.randn(20, 3)
    assert torch.equal(resample(places, (4, 5)).pool(features), features[places.reshape(-1)])


def test_nothing_left_of_a_picture_is_no_cell() -> None:
    assert len(resample(grid_of(4, 4)[:, :0], (4, 0))) == 0


def test_joined_cells_read_their_own_patches() -> None:
    taps = resample(grid_of(1, 2), (1, 1))
    features = torch.tensor([[0.0], [2.0], [10.0], [20.0]])
    assert join_taps([taps, taps.shifted(2)]).pool(features).tolist() == [[1.0], [15.0]]


def test_tiles_lie_as_they_were_cut() -> None:
    """Features that say where they lie: joined, they rise along both sides."""
    rows, cols = np.indices((6, 9))
    tiles = [(rows[r : r + 3, c : c + 3], cols[r : r + 3, c : c + 3]) for r in (0, 3) for c in (0, 3, 6)]
    flat_rows, flat_cols = (np.concatenate([tile[axis].reshape(-1) for tile in tiles]) for axis in (0, 1))
    places = tile_places((2, 3), 3)
    assert np.array_equal(flat_rows[places], rows)
    assert np.array_equal(flat_cols[places], cols)
