"""Blocks of cells of every shape."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evs.blocks import block_starts, measure_blocks
from evs.cells import CellGrid
from tests.evs.oracles import blocks_of, rectangles


def test_worked_example() -> None:
    side, starts = block_starts(((0, 28), (28, 48)))
    assert (side, starts.tolist()) == (8, [[0, 8, 16, 20], [28, 36, 40, 40]])


def test_spans_below_eight_are_one_block() -> None:
    side, starts = block_starts(((0, 5), (5, 10)))
    assert (side, starts.tolist()) == (5, [[0], [5]])


def test_colours_of_equal_brightness_differ() -> None:
    """Worked example of BlockMeans: red against green."""
    pixels = np.empty((2, 3, 8, 8), dtype=np.uint8)
    pixels[0], pixels[1] = (np.array(rgb)[:, None, None] for rgb in ((200, 50, 50), (50, 200, 50)))
    blocks = measure_blocks(pixels, CellGrid.regular(grid=(1, 1), cell=(8, 8), frames_per_slot=1))
    levels = blocks.means[:, :, 0] * 255 / blocks.white
    assert levels.tolist() == [[100, 50, -25, -25], [100, -25, 50, -25]]


spans = st.lists(st.tuples(st.integers(0, 40), st.integers(8, 30)), min_size=1, max_size=3)


@settings(deadline=None, max_examples=60)
@given(rows=spans, columns=spans, frames=st.integers(1, 3), seed=st.integers(0, 99))
def test_every_block_is_measured(
    rows: list[tuple[int, int]], columns: list[tuple[int, int]], frames: int, seed: int
) -> None:
    """Any rectangles, overlapping or not, of any side from 8: the grey means are those of the blocks cut one by one."""
    row_spans, column_spans = ([(start, start + side) for start, side in axis] for axis in (rows, columns))
    pixels = np.random.default_rng(seed).integers(0, 256, (frames, 3, 71, 73), dtype=np.uint8)
    cells = CellGrid(rows=tuple(row_spans), columns=tuple(column_spans), frames_per_slot=frames)
    blocks = measure_blocks(pixels, cells)
    means = blocks.means.reshape(frames, 4, -1, cells.cells_per_slot)
    for place, rect in enumerate(rectangles(row_spans, column_spans)):
        for frame in range(frames):
            found = {int(value) for value in means[frame, 0, :, place]}
            wanted = {2 * int(pixels[frame, :, a:b, c:d].sum()) for a, b, c, d in blocks_of(rect)}
            assert found == wanted
    assert blocks.white == 2 * 3 * 255 * 64


def test_floats_are_refused() -> None:
    """Normalised pixels would be measured on another scale."""
    pixels = np.zeros((2, 3, 8, 8), dtype=np.float32)
    with pytest.raises(ValueError, match=r"pixels must be uint8.*float32"):
        measure_blocks(pixels, CellGrid.regular(grid=(1, 1), cell=(8, 8), frames_per_slot=2))  # type: ignore[arg-type]
