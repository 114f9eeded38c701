"""Free + taken = total, whatever is taken and given back; and sequences lie in one piece."""

from __future__ import annotations

import random

import pytest

from runner.pages import ROOM_TO_GROW, PagePool, pages_for


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


def test_neighbours_grow_without_being_cut_in_two() -> None:
    """Four prompts of ten pages that all grow in turn by as much as there is room for."""
    pool = PagePool(200)
    sequences = [pool.take(10) or [] for _ in range(4)]
    for _ in range(ROOM_TO_GROW):
        for pages in sequences:
            pages.extend(pool.take(1, after=pages[-1]) or [])
    for pages in sequences:
        assert pages == list(range(pages[0], pages[0] + 10 + ROOM_TO_GROW))
    pool.check_integrity()


def test_a_full_pool_gives_its_last_page_wherever_it_lies() -> None:
    """Whatever is taken and given back, the pool hands out distinct pages until none is left."""
    chance = random.Random(0)
    pool, held = PagePool(60), list[list[int]]()
    for _ in range(500):
        if held and chance.random() < 0.5:
            pool.give_back(held.pop(chance.randrange(len(held))))
        elif (pages := pool.take(chance.randint(1, 12), after=chance.choice([None, 0, 59]))) is not None:
            held.append(pages)
        pool.check_integrity()
        taken = [page for pages in held for page in pages]
        assert len(set(taken)) == len(taken) == 60 - pool.num_free
    assert (rest := pool.take(pool.num_free)) is not None
    assert pool.num_free == 0
    assert not set(rest) & set(taken)
