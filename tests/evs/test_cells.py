"""Where cells lie in the pixels."""

from __future__ import annotations

import pytest

from evs.cells import CellGrid


def test_regular_cells_stand_side_by_side() -> None:
    """Cells need not be square."""
    cells = CellGrid.regular(grid=(2, 3), cell=(28, 14), frames_per_slot=2)
    assert cells.rows == ((0, 28), (28, 56))
    assert cells.columns == ((0, 14), (14, 28), (28, 42))
    assert (cells.grid, cells.cells_per_slot) == ((2, 3), 6)


def test_cells_fit_frames_that_are_not_a_multiple_of_anything() -> None:
    cells = CellGrid(rows=((0, 28), (28, 56)), columns=((0, 28), (14, 42)), frames_per_slot=2)
    assert cells.slots_of((6, 3, 59, 43)) == 3
    with pytest.raises(ValueError, match=r"reach \(56, 42\).*\(59, 41\)"):
        cells.slots_of((6, 3, 59, 41))


@pytest.mark.parametrize("shape", [(5, 3, 56, 42), (0, 3, 56, 42), (6, 56, 42)])
def test_pixels_that_fill_no_slots_are_refused(shape: tuple[int, ...]) -> None:
    cells = CellGrid(rows=((0, 28),), columns=((0, 28),), frames_per_slot=2)
    with pytest.raises(ValueError, match="slots of 2 frames"):
        cells.slots_of(shape)


@pytest.mark.parametrize("rows", [(), ((5, 5),), ((-1, 4),), ((4, 2),)])
def test_empty_spans_are_refused(rows: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ValueError, match="rows must be non-empty spans"):
        CellGrid(rows=rows, columns=((0, 8),), frames_per_slot=1)


def test_a_slot_has_a_frame() -> None:
    with pytest.raises(ValueError, match="frames_per_slot must be at least 1, got 0"):
        CellGrid(rows=((0, 8),), columns=((0, 8),), frames_per_slot=0)
