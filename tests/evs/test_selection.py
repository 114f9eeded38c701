"""The Selection and what it tells."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from evs.selection import Selection, WholeSlot, keep_all


def test_worked_example() -> None:
    keep = np.array([[1, 1, 1], [0, 1, 0]], dtype=np.bool_)
    selection = Selection(keep=keep, method="gate", whole=(WholeSlot(slot=0, reason="first"),))
    assert (selection.slots, selection.cells, selection.kept) == (2, 6, 4)
    assert selection.kept_per_slot == (3, 1)
    assert selection.kept_cells.tolist() == [0, 1, 2, 4]
    assert selection.kept_share == 4 / 6
    assert selection.kept_share_per_slot == (1, 1 / 3)
    assert selection.whole_counts == {"first": 1, "refresh": 0, "cut": 0}


def test_a_selection_cannot_be_changed() -> None:
    selection = keep_all(2, 3)
    with pytest.raises(ValueError, match="read-only"):
        selection.keep[0, 0] = False
    with pytest.raises(FrozenInstanceError):
        selection.method = "gate"  # type: ignore[misc]


def test_keep_all_is_the_identity() -> None:
    assert (keep_all(3, 4).kept, keep_all(3, 4).whole) == (12, ())


@pytest.mark.parametrize("keep", [np.ones(4, np.bool_), np.ones((2, 2)), np.zeros((2, 2), np.bool_)])
def test_what_selects_nothing_is_refused(keep: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"keep must be|at least one cell"):
        Selection(keep=keep, method="none")


@pytest.mark.parametrize(
    ("slots", "message"), [((1,), "named as whole"), ((0, 0), "must rise"), ((2,), "within"), ((-1,), "within")]
)
def test_whole_slots_are_whole(slots: tuple[int, ...], message: str) -> None:
    keep = np.array([[1, 1], [0, 1]], dtype=np.bool_)
    with pytest.raises(ValueError, match=message):
        Selection(keep=keep, method="gate", whole=tuple(WholeSlot(slot=slot, reason="cut") for slot in slots))
