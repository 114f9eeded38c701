"""Pages of earlier sequences for later ones that begin the same way. Owns when pages can be found, who may use them and
why not; knows no tensors.

A page can be found from when its rows are computed until it is handed out anew, whether or not somebody still holds it.
A sequence that is preempted or done leaves its pages behind. Nothing of what was found is written again: a sequence
goes on behind it, in pages of its own. Windows of a live stream would leave pages without end that nobody will find: of
each stream those of the newest window stay.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Literal

from runner.page_keys import cacheable_rows, extend_page_keys
from runner.pages import PagePool, pages_for
from runner.pooling import Pooled, Pooling
from runner.sequence import Sequence

Bypass = Literal["off", "window"]
MAX_LINES = 64


class PrefixCache:
    """bypass: why nothing is cached at all; "window": pages are freed behind every layer's window, so that no sequence
    has a beginning to share. pooling: how this model's vectors are made."""

    def __init__(self, pages: PagePool, page_size: int, *, bypass: Bypass | None, pooling: Pooling) -> None:
        self._pages = pages
        self._page_size = page_size
        self._bypass = bypass
        self._pooling = pooling
        self.events: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()  # sequences that were not looked up, by reason
        self._newest: OrderedDict[str, list[bytes]] = OrderedDict()  # by line, oldest first

    def prepare(self, sequences: list[Sequence]) -> None:
        """Make the keys of their prompts. For the threads that sequences come from, before the model's thread has them:
        32 000 rows take it 0.06 s."""
        if self._bypass is not None:
            return
        for before, sequence in zip([None, *sequences], sequences, strict=False):
            if before is not None and before.prompt is sequence.prompt:  # answers to one request
                sequence.page_keys = list(before.page_keys)
            else:
                extend_page_keys(sequence, len(sequence), self._page_size)

    def admit(self, sequence: Sequence) -> bool:
        """Give a sequence pages for all its rows and one more, those that can be found first, and have it begin behind
        what they hold. False, and nothing taken, where there are not enough."""
        found = self._find(sequence)
        self._pages.share(found)
        more = pages_for(len(sequence) + 1, self._page_size) - len(found)
        taken = self._pages.take(more, after=found[-1] if found else None)
        if taken is None:
            self._pages.give_back(found)
            return False
        sequence.pages = found + taken
        sequence.num_computed_tokens = len(found) * self._page_size
        if sequence.num_cached_tokens is None:
            self._count(sequence)
        return True

    def publish(self, sequence: Sequence) -> None:
        """Let the full pages of a sequence's computed rows be found, those of tokens that it has."""
        if self._bypass is not None:
            return
        # Rows of accepted drafts are computed before their tokens are taken, and some of these never are.
        done = min(sequence.num_computed_tokens, len(sequence)) // self._page_size
        extend_page_keys(sequence, done * self._page_size, self._page_size)
        for page in range(sequence.num_published_pages, done):
            self._pages.publish(sequence.pages[page], sequence.page_keys[page])
        sequence.num_published_pages = done

    def succeed(self, sequence: Sequence) -> None:
        """A sequence is done: in its line, what those before it left and it does not share is of no use any more."""
        if sequence.line is None or self._bypass is not None:
            return
        shared = set(sequence.page_keys)
        self._pages.drop(key for key in self._newest.pop(sequence.line, ()) if key not in shared)
        self._newest[sequence.line] = sequence.page_keys
        while len(self._newest) > MAX_LINES:
            self._pages.drop(self._newest.popitem(last=False)[1])

    def _find(self, sequence: Sequence) -> list[int]:
        if self._reason(sequence) is not None:
            return []
        extend_page_keys(sequence, len(sequence), self._page_size)
        found = self._pages.find(sequence.page_keys)
        return found[: cacheable_rows(sequence, len(found), self._page_size) // self._page_size]

    def _reason(self, sequence: Sequence) -> str | None:
        """Why this one may use nothing; a mean is over the states of all rows, and they are kept nowhere."""
        if self._bypass is not None:
            return self._bypass
        return "mean_pooling" if isinstance(sequence.goal, Pooled) and self._pooling == "mean" else None

    def _count(self, sequence: Sequence) -> None:
        """Once a sequence, at its first admission: what it finds of its own after a preemption is no cached prompt."""
        sequence.num_cached_tokens = sequence.num_computed_tokens
        reason = self._reason(sequence)
        if reason is not None:
            self.skipped[reason] += 1
            return
        self.events["queries"] += len(sequence)
        self.events["hits"] += sequence.num_cached_tokens
