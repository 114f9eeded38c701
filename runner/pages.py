"""The pool of KV pages: which are free, which are taken. Owns the balance free + taken = total; knows no tensors."""

from __future__ import annotations

import heapq


class PagePool:
    """Hands out page numbers, lowest first, so that contexts tend to lie in consecutive pages."""

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise ValueError(f"a page pool needs at least one page, got {num_pages}")
        self.num_pages = num_pages
        self._free = list(range(num_pages))
        self._taken: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int] | None:
        """`count` pages, or None (and nothing taken) when there are not that many."""
        if count > len(self._free):
            return None
        pages = [heapq.heappop(self._free) for _ in range(count)]
        self._taken.update(pages)
        return pages

    def give_back(self, pages: list[int]) -> None:
        for page in pages:
            self._taken.remove(page)
            heapq.heappush(self._free, page)

    def check_integrity(self) -> None:
        """Assert that free + taken = total and that no page is both."""
        assert len(self._free) + len(self._taken) == self.num_pages, (len(self._free), len(self._taken), self.num_pages)
        assert not self._taken.intersection(self._free)


def pages_for(num_tokens: int, page_size: int) -> int:
    """Pages that hold `num_tokens` rows: 0 -> 0, 1 -> 1, 16 -> 1, 17 -> 2 at page_size 16."""
    return -(-num_tokens // page_size)
