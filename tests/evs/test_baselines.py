"""Baselines keep as many cells as `evs`, the same ones everywhere."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evs.baselines import keep_random, keep_uniform
from evs.count import count_kept

shapes = {"slots": st.integers(1, 20), "cells": st.integers(1, 60), "rate": st.floats(0, 1, exclude_max=True)}


def test_worked_example() -> None:
    selection = keep_uniform(3, 4, 0.4)
    assert selection.kept_cells.tolist() == [0, 1, 2, 3, 4 + 1, 4 + 4, 4 + 6]


@given(**shapes, seed=st.integers(0, 2**64 - 1))
def test_counts_are_those_of_evs(slots: int, cells: int, rate: float, seed: int) -> None:
    for selection in (keep_uniform(slots, cells, rate), keep_random(slots, cells, rate, seed=seed)):
        assert selection.kept == count_kept(slots, cells, rate)
        assert selection.keep[0].all()
        assert [whole.slot for whole in selection.whole] == [0]


@given(**shapes)
def test_uniform_leaves_even_gaps(slots: int, cells: int, rate: float) -> None:
    gaps = np.diff(keep_uniform(slots, cells, rate).kept_cells[cells:])
    assert gaps.size == 0 or gaps.max() - gaps.min() <= 1


def test_a_seed_means_the_same_cells_everywhere() -> None:
    """Recorded once; another machine or version that differs would make figures incomparable."""
    assert keep_random(4, 8, 0.5, seed=7).kept_cells[8:].tolist() == [9, 12, 14, 16, 24, 29, 30, 31]
    assert keep_random(4, 8, 0.5, seed=8).kept_cells[8:].tolist() == [16, 17, 18, 19, 23, 25, 26, 31]


def test_random_is_spread_over_the_later_cells() -> None:
    counts = sum(keep_random(5, 10, 0.5, seed=seed).keep.astype(int) for seed in range(400))
    later = counts[1:]  # 15 of 40 are drawn, 400 times
    assert (np.abs(later - 150) < 60).all()
