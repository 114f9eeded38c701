"""Law 2 begins here: one count, exact for every rate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evs.count import cap_cells, count_kept


@pytest.mark.parametrize(
    ("slots", "cells", "rate", "kept"),
    [
        (1, 64, 0.75, 64), (2, 64, 0.75, 64), (4, 64, 0.75, 64), (8, 64, 0.75, 128), (10, 64, 0.7, 192),
        (25, 40, 0.9, 100), (10, 100, 0.9, 100), (5, 100, 0.8, 100), (3, 7, 0.0, 21), (3, 7, 0, 21),
    ],
)  # fmt: skip
def test_known_counts(slots: int, cells: int, rate: float, kept: int) -> None:
    """1000 cells at rate 0.9 keep 100; floats would say 99."""
    assert count_kept(slots, cells, rate) == kept


@given(st.integers(1, 300), st.integers(1, 2000), st.integers(0, 9999))
def test_counts_are_those_of_whole_numbers(slots: int, cells: int, dropped: int) -> None:
    """A rate of n ten-thousandths drops exactly that share, rounded in the clip's favour, never below one slot."""
    exact = slots * cells * (10000 - dropped) // 10000
    assert cap_cells(slots, cells, dropped / 10000) == exact
    assert count_kept(slots, cells, dropped / 10000) == max(cells, exact)


@given(st.integers(1, 300), st.integers(1, 2000), st.floats(0, 1, exclude_max=True))
def test_counts_stay_within_the_clip(slots: int, cells: int, rate: float) -> None:
    assert cells <= count_kept(slots, cells, rate) <= slots * cells


@pytest.mark.parametrize("rate", [-0.1, 1, 1.0, 1.5, float("nan"), float("inf")])
def test_rates_out_of_bounds_are_refused(rate: float) -> None:
    with pytest.raises(ValueError, match=f"at least 0 and below 1, got {rate}"):
        count_kept(4, 10, rate)


def test_an_empty_clip_has_no_count() -> None:
    with pytest.raises(ValueError, match="got 0 slots of 10 cells"):
        count_kept(0, 10, 0.5)
