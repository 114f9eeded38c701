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


def test_published_pages_are_found_shared_and_kept() -> None:
    """Two hold the first page; it is cached when both have given it back, and what was never published is empty."""
    pool = PagePool(4)
    pages = pool.take(3) or []
    pool.publish(pages[0], b"a")
    pool.publish(pages[1], b"b")
    assert pool.find([b"a", b"b", b"c"]) == [0, 1]
    assert pool.find([b"c", b"a"]) == []
    pool.share([0])
    pool.give_back(pages)
    assert (pool.num_cached, pool.num_free) == (1, 3)
    pool.check_integrity([0])
    pool.give_back([0])
    assert (pool.num_cached, pool.num_free) == (2, 4)
    assert pool.find([b"a", b"b"]) == [0, 1]
    pool.forget()
    assert (pool.num_cached, pool.num_free, pool.find([b"a"])) == (0, 4, [])
    pool.check_integrity()


def test_the_oldest_gives_way_from_its_end() -> None:
    """Two sequences of two pages; a third of three takes the empty page, then the first one's last and first."""
    pool = PagePool(5)
    for keys in ((b"a", b"b"), (b"c", b"d")):
        pages = pool.take(2) or []
        for page, key in zip(pages, keys, strict=True):
            pool.publish(page, key)
        pool.give_back(pages)
    pool.take(2)
    assert (pool.find([b"a", b"b"]), pool.find([b"c", b"d"])) == ([0], [2, 3])
    pool.take(1)
    assert (pool.find([b"a", b"b"]), pool.find([b"c", b"d"]), pool.num_evicted) == ([], [2, 3], 2)
    assert pool.take(3) is None


def test_no_more_are_kept_than_may_be() -> None:
    pool = PagePool(8, max_cached=2)
    pages = pool.take(4) or []
    for page in pages:
        pool.publish(page, bytes([page]))
    pool.give_back(pages)
    assert (pool.num_cached, pool.num_free, pool.find([b"\0", b"\1", b"\2"])) == (2, 8, [0, 1])
    pool.check_integrity()


def test_a_key_is_the_first_pages_who_has_it() -> None:
    pool = PagePool(3)
    first, second = pool.take(1) or [], pool.take(1) or []
    pool.publish(first[0], b"a")
    pool.publish(second[0], b"a")
    pool.give_back(second)
    assert (pool.find([b"a"]), pool.num_cached) == (first, 0)
    pool.give_back(first)
    assert (pool.find([b"a"]), pool.num_cached) == (first, 1)


def test_sharing_balances_whatever_happens() -> None:
    """Random prompts over a few beginnings, as a scheduler does it: find, share, take, publish, give back."""
    chance = random.Random(1)
    pool, held, hits = PagePool(40, max_cached=30), list[list[int]](), 0
    for _ in range(2000):
        if held and chance.random() < 0.5:
            pool.give_back(held.pop(chance.randrange(len(held))))
        else:
            word = bytes(chance.choices(range(3), k=chance.randint(1, 8)))
            keys = [word[: place + 1] for place in range(len(word))]
            found = pool.find(keys)
            pool.share(found)
            taken = pool.take(len(keys) - len(found), after=found[-1] if found else None)
            if taken is None:
                pool.give_back(found)
                continue
            hits += len(found)
            for page, key in zip(taken, keys[len(found) :], strict=True):
                pool.publish(page, key)
            held.append(found + taken)
        pool.check_integrity([page for pages in held for page in pages])
    assert hits > 100 and pool.num_evicted > 100


def test_what_is_dropped_is_free_unless_somebody_holds_it() -> None:
    pool = PagePool(4)
    left, held = pool.take(2) or [], pool.take(1) or []
    for page in (*left, *held):
        pool.publish(page, bytes([page]))
    pool.give_back(left)
    pool.drop([b"\1", b"\2", b"never there"])
    assert (pool.num_cached, pool.find([b"\0"]), pool.find([b"\1"]), pool.find([b"\2"])) == (1, [0], [], [2])
    assert pool.take(1) == [1]
    pool.check_integrity([1, *held])
