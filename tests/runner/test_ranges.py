"""Where ranges lie, what pruning leaves of them, and where a prompt may be cut: the worked examples, and the law that
no cut falls inside a range."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.families.base import DenseSpan, PrefixRule
from runner.ranges import cut_before, longest_range, prefix_ranges, prune_ranges, range_at, ranges_within

SPANS = [DenseSpan(item=0, start=2, cells=np.arange(2)), DenseSpan(item=0, start=6, cells=np.arange(2, 4))]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("none", ()), ("run", ((2, 4), (6, 8))), ("item", ((2, 8),)), ("prompt", ((0, 10),))],
)
def test_a_family_chooses_its_ranges(rule: PrefixRule, expected: tuple) -> None:
    assert prefix_ranges(rule, 10, SPANS) == expected


def test_items_are_kept_apart() -> None:
    other = DenseSpan(item=1, start=9, cells=np.arange(3))
    assert prefix_ranges("item", 14, [*SPANS, other]) == ((2, 8), (9, 12))


def test_pruning_is_the_worked_example() -> None:
    assert prune_ranges([(1, 4), (5, 7)], np.array([1, 1, 0, 1, 1, 0, 1, 1], dtype=bool)) == ((1, 3),)


def test_cuts_are_the_worked_example() -> None:
    ranges = ((2, 5), (5, 7))
    assert [cut_before(ranges, stop) for stop in (1, 2, 4, 6, 9)] == [1, 2, 2, 5, 9]
    assert range_at(ranges, 5) == (5, 7)
    assert range_at(ranges, 3) is None
    assert range_at((), 0) is None
    assert longest_range(ranges) == 3
    assert ranges_within(ranges, 5, 9) == ((5, 7),)


@given(st.lists(st.integers(1, 9), min_size=2, max_size=12), st.integers(0, 80))
def test_no_cut_falls_inside_a_range(lengths: list[int], stop: int) -> None:
    edges = np.cumsum(lengths).tolist()
    ranges = tuple(zip(edges[::2], edges[1::2], strict=False))
    cut = cut_before(ranges, stop)
    assert cut <= stop
    assert not any(start < cut < end for start, end in ranges)
    assert not any(cut < start <= stop for start, _ in ranges)  # no further back than need be
