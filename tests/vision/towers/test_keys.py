"""Every row sees a whole picture made of owners, however the clip is cut and whatever stands beside it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from vision.towers.keys import borrow_keys, carried_places, hand_over_keys, join_keys, own_keys, owner_slots
from vision.towers.packed import patch_places


def places(count: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(count, np.int64), np.arange(count)


def test_worked_examples() -> None:
    assert owner_slots(np.array([[1, 0], [0, 1], [0, 0]], bool)).tolist() == [[0, -1], [0, 1], [0, 1]]
    present = np.array([[1, 1, 1], [0, 0, 0], [0, 1, 0]], bool)
    assert carried_places(present, 1).tolist() == [0, 2]
    assert carried_places(present, 3).tolist() == []
    present = np.array([[1, 1], [0, 1], [1, 0]], bool)
    whole = borrow_keys(present, 0, 3, places=places(2))
    assert (whole.index.tolist(), whole.cu_keys.tolist()) == ([0, 1, 0, 2, 3, 2], [0, 2, 4, 6])
    tail = borrow_keys(present, 1, 3, places=places(2))
    assert (tail.index.tolist(), tail.cu_keys.tolist(), tail.cols.tolist()) == ([0, 1, 2, 1], [0, 2, 4], [0])
    none = np.zeros(0, np.int64)
    first = borrow_keys(np.array([[1, 0], [1, 1]], bool), 1, 2, places=places(2))
    assert (first.index.tolist(), len(first.rows)) == ([0, 1], 0)
    link = hand_over_keys(np.array([1, 0, 1], bool), places=places(3))
    assert (link.index.tolist(), link.cols.tolist(), link.carry_on.tolist()) == ([1, 0, 2], [1], [1, 0, 2])
    parts = [
        own_keys(np.array([0, 2])).__class__(
            index=np.array(index), cu_keys=np.array([0, len(index)]), rows=np.zeros(1, np.int64),
            cols=np.zeros(1, np.int64), carry_on=none,
        )
        for index in ([0, 1, 2], [0, 1])
    ]  # fmt: skip
    assert join_keys(parts, [2, 1]).index.tolist() == [0, 2, 3, 1, 4]


@pytest.mark.parametrize("seed", range(6))
def test_parts_see_what_the_whole_clip_sees(seed: int) -> None:
    """Each key is named by what it is (slot, place): the same names, however the clip is cut. Some places have no owner
    at first, some slots no rows."""
    rng = np.random.default_rng(seed)
    present = rng.random((9, 6)) < 0.35
    present[rng.random(9) < 0.3] = False
    names = [(slot, place) for slot, place in np.argwhere(present).tolist()]

    def seen(start: int, stop: int, carried: list[tuple[int, int]]) -> tuple[list[object], list[tuple[int, int]]]:
        keys = borrow_keys(present, start, stop, places=places(6))
        assert keys.cols.tolist() == [place for _, place in carried]
        table = [*carried, *(name for name in names if start <= name[0] < stop)]
        named = [[table[number] for number in keys.index[a:b]] for a, b in itertools.pairwise(keys.cu_keys.tolist())]
        return named, [table[number] for number in keys.carry_on]

    whole, left = seen(0, 9, [])
    assert left == []
    rows = [slot for slot in range(9) if present[slot].any()]
    for slot, keys in zip(rows, whole, strict=True):
        last = {place: other for other, place in names if other <= slot}
        assert keys == [(owner, place) for place, owner in sorted(last.items())]
    for cuts in ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [0, 4, 9], [0, 2, 3, 9]):
        carried: list[tuple[int, int]] = []
        parts: list[object] = []
        for start, stop in itertools.pairwise(cuts):
            named, carried = seen(start, stop, carried)
            parts += named
        assert parts == whole


def test_what_is_carried_must_be_there() -> None:
    """A part that reads carried keys is not encoded without them."""
    keys = borrow_keys(np.array([[1, 1], [0, 1]], bool), 1, 2, places=patch_places(1, 2, 1))
    assert len(keys.carrying((torch.zeros(2, 1, 1, 4),)).carried) == 1
    with pytest.raises(AssertionError):
        keys.carrying(())
