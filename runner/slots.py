"""What the runner remembers of each running sequence, in tables with a line for each place: edited where a sequence
enters, grows or gives pages back, and gathered by place. Owns the tables and their copies on the device; knows no
queues and no model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from runner.plan import RowsWork
from runner.sequence import Sequence as Running

# What is left in the tail of a page that nobody has written to yet.
TAIL = 0.0


class Mirror:
    """int64 numbers that the host writes and the device reads: two copies on CUDA, the host's pinned so that pushing
    waits for nothing; one on a CPU."""

    def __init__(self, shape: tuple[int, ...], device: torch.device, *, value: int = 0) -> None:
        self._host = torch.full(shape, value, dtype=torch.int64, pin_memory=device.type == "cuda")
        self.host: np.ndarray = self._host.numpy()
        self.device = self._host if device.type == "cpu" else self._host.to(device)

    def push(self, where: slice | int | tuple[slice, ...]) -> None:
        if self.device is not self._host:
            self.device[where].copy_(self._host[where], non_blocking=True)


def make_event() -> Any:
    """A CUDA event; torch leaves it without types."""
    cuda: Any = torch.cuda
    return cuda.Event()


@dataclass(slots=True, kw_only=True, eq=False)
class _Line:
    """What a table's line was written from. pages is the sequence's own list, which is another one whenever it was
    given pages anew."""

    pages: list[int]
    stop: int
    freed: int


class SlotTables:
    """One line for each place, and one more, `spare`, for what only fills a batch up: scratch pages, and nothing else.

    pages: (places + 1, columns), each line as attention.protocol.StaticTables wants it. clear(pages, value): fills the
    tails of pages that are new; None where nobody reads them.
    """

    def __init__(
        self,
        places: int,
        columns: int,
        *,
        page_size: int,
        scratch_page: int,
        device: torch.device,
        clear: Callable[[Sequence[int], float], None] | None,
    ) -> None:
        self.spare = places
        self._page_size, self._clear = page_size, clear
        self.pages = Mirror((places + 1, columns), device, value=scratch_page)
        self.seq_lens = np.zeros(places + 1, dtype=np.int64)
        self.tokens = np.zeros(places + 1, dtype=np.int64)  # the newest of each
        self.next_positions = np.zeros(places + 1, dtype=np.int64)  # of it, on all axes
        self._lines: dict[int, _Line] = {}

    def edit(self, work: RowsWork) -> int:
        """Bring a sequence's line up to date with what it is about to compute; returns its place."""
        sequence, slot = work.sequence, work.sequence.slot
        line, stop = self._lines.get(slot), sequence.num_freed_pages + len(sequence.pages)
        if line is None or line.pages is not sequence.pages or stop < line.stop:
            self._enter(sequence, stop)
        elif line.freed != sequence.num_freed_pages or line.stop != stop:
            self._follow(sequence, line, stop)
        self.seq_lens[slot] = work.stop
        if sequence.output:
            after = len(sequence.output) - 1
            self.tokens[slot] = sequence.output[-1]
            self.next_positions[slot] = sequence.prompt.next_position + after
        return slot

    def _enter(self, sequence: Running, stop: int) -> None:
        slot, freed = sequence.slot, sequence.num_freed_pages
        row = self.pages.host[slot]
        row[:] = sequence.pages[0]
        row[freed:stop] = sequence.pages
        self._lines[slot] = _Line(pages=sequence.pages, stop=stop, freed=freed)
        self.pages.push(slot)
        # Pages before these are full of rows that are known already.
        self._clear_tails(sequence.pages[max(0, len(sequence) // self._page_size - freed) :])

    def _follow(self, sequence: Running, line: _Line, stop: int) -> None:
        slot, freed = sequence.slot, sequence.num_freed_pages
        row = self.pages.host[slot]
        if freed != line.freed:  # nothing may name a page that was given back
            row[:freed] = sequence.pages[0]
            row[stop:] = sequence.pages[0]
        fresh = sequence.pages[len(sequence.pages) - (stop - line.stop) :] if stop > line.stop else []
        row[stop - len(fresh) : stop] = fresh
        line.stop, line.freed = stop, freed
        self.pages.push(slot)
        self._clear_tails(fresh)

    def _clear_tails(self, pages: Sequence[int]) -> None:
        if self._clear is not None and pages:
            self._clear(pages, TAIL)
