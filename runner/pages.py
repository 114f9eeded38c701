"""The pool of KV pages: which are free, which are taken and by how many, and which still hold rows that can be found
by their key. Owns the balance free + taken = total, and which pages give way first; knows no tensors."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

FREE, TAKEN, CACHED = 1, 0, 2
# Pages left free behind a neighbour, for what it is going to write: 256 tokens at 16 a page.
ROOM_TO_GROW = 16
_GAP = re.compile(b"\x01+")


class PagePool:
    """Hands out page numbers, such that a sequence's pages lie one after the other wherever that can be had, and low
    numbers are used again first.

    A page that was published under a key can be found by it, and shared, until it is handed out anew: when all who hold
    it have given it back it is cached, which is free as far as anybody else is concerned. Cached pages are handed out
    when no others are left, those that were given back first before the others, and no more than `max_cached` are kept:
    a system that gives memory as it is first written would have to give all of it.
    """

    def __init__(self, num_pages: int, *, max_cached: int | None = None) -> None:
        if num_pages < 1:
            raise ValueError(f"a page pool needs at least one page, got {num_pages}")
        self.num_pages = num_pages
        self.max_cached = num_pages if max_cached is None else max_cached
        self.num_evicted = 0
        self._state = bytearray([FREE]) * num_pages
        self._num_empty = num_pages
        self._holders: Counter[int] = Counter()
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._page_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        """Pages that can be taken, cached ones among them."""
        return self._num_empty + len(self._cached)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    def take(self, count: int, *, after: int | None = None) -> list[int] | None:
        """`count` pages, or None (and nothing taken) when there are not that many.

        after: the last page of the sequence that grows; the pages behind it are taken when they are free.
        """
        if count > self.num_free:
            return None
        while self._num_empty < count:
            self._evict(next(iter(self._cached)))
        first = self._place(count, after)
        pages = list(range(first, first + count)) if first is not None else self._scattered(count)
        for page in pages:
            self._state[page] = TAKEN
            self._holders[page] = 1
        self._num_empty -= count
        return pages

    def give_back(self, pages: Sequence[int]) -> None:
        """Raises KeyError for a page that is not taken. The first of a sequence's pages stay cached longest: a page is
        found only behind those before it."""
        for page in reversed(pages):
            if self._state[page] != TAKEN:
                raise KeyError(page)
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            del self._holders[page]
            if page in self._key_of:
                self._state[page] = CACHED
                self._cached[page] = None
            else:
                self._state[page] = FREE
                self._num_empty += 1
        while len(self._cached) > self.max_cached:
            self._evict(next(iter(self._cached)))

    # ------------------------------------------------------------------------------------------------ found by key

    def publish(self, page: int, key: bytes) -> None:
        """Let a taken page be found. Where another one has that key already, that one stays the one that is found."""
        assert self._state[page] == TAKEN
        if key not in self._page_of and page not in self._key_of:
            self._page_of[key], self._key_of[page] = page, key

    def find(self, keys: Iterable[bytes]) -> list[int]:
        """The pages of the first of these keys, up to the first that is not there."""
        pages: list[int] = []
        for key in keys:
            page = self._page_of.get(key)
            if page is None:
                break
            pages.append(page)
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Hold pages that were found, as one more."""
        for page in pages:
            if self._state[page] == CACHED:
                del self._cached[page]
                self._state[page] = TAKEN
            assert self._state[page] == TAKEN and page in self._key_of
            self._holders[page] += 1

    def drop(self, keys: Iterable[bytes]) -> None:
        """Let the pages of these keys not be found any more, but for those that somebody holds."""
        for key in keys:
            page = self._page_of.get(key)
            if page is not None and self._state[page] == CACHED:
                self._evict(page)

    def forget(self) -> None:
        """Let no page be found any more that was published so far."""
        for page in list(self._cached):
            self._evict(page)
        self._page_of.clear()
        self._key_of.clear()

    def _evict(self, page: int) -> None:
        del self._cached[page]
        del self._page_of[self._key_of.pop(page)]
        self._state[page] = FREE
        self._num_empty += 1
        self.num_evicted += 1

    def check_integrity(self, held: Iterable[int] = ()) -> None:
        """Assert that empty + cached + taken = total, and that each page is held as often as it stands in `held`."""
        counts = {state: self._state.count(state) for state in (FREE, CACHED, TAKEN)}
        assert counts[FREE] == self._num_empty, (counts, self._num_empty)
        assert counts[CACHED] == len(self._cached) and counts[TAKEN] == len(self._holders)
        assert len(self._state) == self.num_pages == sum(counts.values())
        assert self._page_of == {key: page for page, key in self._key_of.items()}
        assert self._cached.keys() <= self._key_of.keys() <= self._cached.keys() | self._holders.keys()
        assert not (wanted := Counter(held)) or wanted == self._holders, (wanted, self._holders)

    # ------------------------------------------------------------------------------------------------------- where

    def _place(self, count: int, after: int | None) -> int | None:
        """The first of `count` free pages in a row; None when no gap is that large."""
        behind = None if after is None else after + 1
        if behind is not None and self._state[behind : behind + count] == bytes([FREE]) * count:
            return behind
        for room in (ROOM_TO_GROW, 0):
            for gap in _GAP.finditer(self._state):
                first = gap.start() + (room if gap.start() else 0)
                if gap.end() - first >= count:
                    return first
        return None

    def _scattered(self, count: int) -> list[int]:
        pages: list[int] = []
        place = -1
        while len(pages) < count:
            place = self._state.index(FREE, place + 1)
            pages.append(place)
        return pages


def pages_for(num_tokens: int, page_size: int) -> int:
    """Pages that hold `num_tokens` rows: 0 -> 0, 1 -> 1, 16 -> 1, 17 -> 2 at page_size 16."""
    return -(-num_tokens // page_size)
