"""Free + taken = total, whatever is taken and given back."""

from __future__ import annotations

import pytest

from runner.pages import PagePool, pages_for


def test_pages_for_is_its_worked_example() -> None:
    assert [pages_for(n, 16) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]


def test_pages_come_lowest_first_and_return() -> None:
    pool = PagePool(4)
    assert pool.take(3) == [0, 1, 2]
    assert pool.take(2) is None
    assert pool.num_free == 1
    pool.give_back([1])
    assert pool.take(2) == [1, 3]
    pool.check_integrity()


def test_giving_back_what_was_not_taken_is_our_bug() -> None:
    pool = PagePool(2)
    with pytest.raises(KeyError):
        pool.give_back([0])
