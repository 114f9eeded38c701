"""The pool of KV pages: which are free, which are taken. Owns the balance free + taken = total; knows no tensors."""

from __future__ import annotations

import re

FREE, TAKEN = 1, 0
# Pages left free behind a neighbour, for what it is going to write: 256 tokens at 16 a page.
ROOM_TO_GROW = 16
_GAP = re.compile(b"\x01+")


class PagePool:
    """Hands out page numbers, such that a sequence's pages lie one after the other wherever that can be had, and low
    numbers are used again first."""

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise ValueError(f"a page pool needs at least one page, got {num_pages}")
        self.num_pages = num_pages
        self.num_free = num_pages
        self._state = bytearray([FREE]) * num_pages

    def take(self, count: int, *, after: int | None = None) -> list[int] | None:
        """`count` pages, or None (and nothing taken) when there are not that many.

        after: the last page of the sequence that grows; the pages behind it are taken when they are free.
        """
        if count > self.num_free:
            return None
        first = self._place(count, after)
        pages = list(range(first, first + count)) if first is not None else self._scattered(count)
        for page in pages:
            self._state[page] = TAKEN
        self.num_free -= count
        return pages

    def give_back(self, pages: list[int]) -> None:
        """Raises KeyError for a page that is not taken."""
        for page in pages:
            if self._state[page] != TAKEN:
                raise KeyError(page)
            self._state[page] = FREE
        self.num_free += len(pages)

    def check_integrity(self) -> None:
        """Assert that free + taken = total."""
        assert self._state.count(FREE) == self.num_free, (self._state.count(FREE), self.num_free)
        assert len(self._state) == self.num_pages == self.num_free + self._state.count(TAKEN)

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
