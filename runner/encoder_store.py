"""Encoder outputs: those that wait for prefill, and those kept for the next question. Owns their memory and progress,
bounded in bytes and in number; knows no scheduler.

An entry is one item's kept cells. Space for the whole entry is taken when its encoding begins, so that what was begun
can always be finished. What a clip that is encoded in parts carries from one to the next comes on top while it lasts:
the keys and values of one picture, and of one clip at a time, for a clip that is cut ends a step's encoding. Entries
that a running sequence will read are pinned; the others are a cache, and give way in the order in which they were last
used. No entry holds pixels: a cache of many small ones would hold far more of these than of rows. What a live stream's
slot was encoded to goes with its item: nobody will ask for it again, and a stream has no end.

What a stream's slot leaves to the next, a picture's keys and values, is kept in the same way and within as many bytes
again, at least one; what gave way is made again by encoding the slots since the last whole one.
"""

from __future__ import annotations

import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from runner.errors import RequestError
from runner.items import MediaItem
from vision.towers.packed import EncodedCells

MAX_ENTRIES = 1 << 14  # the smallest cost as much in objects as in rows
MAX_LEFT = 64  # pictures that slots have left; where a whole slot follows, nobody takes it


@dataclass(slots=True, kw_only=True, eq=False)
class StoredItem:
    """rows: (1 + planes, kept, D), of which the first `num_rows` are written; of `slots`, [0, next_slot) are encoded.
    carry: keys and values, layer by layer, that the encoding of the next slots will read."""

    slots: int
    rows: torch.Tensor
    carry: tuple[torch.Tensor, ...] = ()
    next_slot: int = 0
    num_rows: int = 0

    @property
    def is_complete(self) -> bool:
        return self.next_slot == self.slots

    @property
    def row_bytes(self) -> int:
        return self.rows.numel() * self.rows.element_size()

    @property
    def carry_bytes(self) -> int:
        return _size(self.carry)


class EncoderStore:
    """Entries by encoding key: items of different requests that would encode to the same rows share one."""

    def __init__(
        self, *, max_bytes: int, num_planes: int, width: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.max_bytes = max_bytes
        self._shape = (1 + num_planes, width)
        self._dtype, self._device = dtype, device
        self._entries: OrderedDict[str, StoredItem] = OrderedDict()
        self._row_bytes = self._carry_bytes = 0
        self._begun: set[str] = set()
        self._pinned: set[str] = set()
        self._passing: dict[str, weakref.ref[MediaItem]] = {}
        self._gone: deque[str] = deque()  # keys of items that passed; other threads may append
        self._left: OrderedDict[str, int] = OrderedDict()  # bytes that a stream's slots have left, oldest first
        self.events: Counter[str] = Counter()

    @property
    def num_pinned(self) -> int:
        return len(self._pinned)

    @property
    def used_bytes(self) -> int:
        return self._row_bytes + self._carry_bytes

    def bytes_of(self, item: MediaItem) -> int:
        planes, width = self._shape
        return planes * width * self._dtype.itemsize * item.selection.kept

    def check_together(self, items: Sequence[MediaItem]) -> None:
        """Raises RequestError for items whose encodings must be kept at once and cannot be."""
        needed = sum({item.encoding_key: self.bytes_of(item) for item in items}.values())
        if needed > self.max_bytes:
            raise RequestError(
                "too_large",
                f"this model reads all pictures at once: they need {needed} bytes of encoder output and the server "
                f"keeps at most {self.max_bytes}; send fewer, or sample fewer frames",
                param="messages",
            )

    def get(self, item: MediaItem) -> StoredItem | None:
        return self._entries.get(item.encoding_key)

    def open(self, item: MediaItem) -> StoredItem | None:
        """The item's entry, pinned and begun if need be; None while pinned entries leave no room for it."""
        key = item.encoding_key
        entry = self._entries.get(key)
        if entry is None:
            if not self._make_room(self.bytes_of(item)):
                return None
            entry = self._begin(item)
        elif key not in self._pinned:
            self.events["hits"] += 1
        self._entries.move_to_end(key)
        self._pinned.add(key)
        if item.passes:  # of several with one key, the last that was asked for
            self._passing[key] = weakref.ref(item, lambda _: self._gone.append(key))
        return entry

    def write(self, item: MediaItem, cells: EncodedCells, slot_stop: int) -> None:
        """Append the kept cells of slots [next_slot, slot_stop)."""
        key = item.encoding_key
        entry = self._entries[key]
        stop = entry.num_rows + len(cells.embeddings)
        assert stop == item.kept_before(slot_stop), (stop, item.kept_before(slot_stop))
        for plane, rows in zip(entry.rows, (cells.embeddings, *cells.planes), strict=True):
            plane[entry.num_rows : stop] = rows
        entry.num_rows = stop
        self._carry(entry, cells.carry)
        entry.next_slot = item.entering.reach(slot_stop, 0)  # slots that keep nothing are done as they stand
        if entry.is_complete:
            self._begun.discard(key)
        if item.link is not None:
            self._left[key] = entry.carry_bytes
            self._drop_left()

    def add_pruned(self, item: MediaItem, dense: StoredItem) -> None:
        """An entry for an item whose Selection was made from the whole encoding; left out when there is no room."""
        if item.encoding_key in self._entries or not self._make_room(self.bytes_of(item)):
            return
        rows = dense.rows[:, torch.from_numpy(item.selection.kept_cells).to(self._device)]
        slots, kept = item.grid.slots, item.selection.kept
        self._add(item.encoding_key, StoredItem(slots=slots, rows=rows, next_slot=slots, num_rows=kept))

    def keep_pinned(self, items: set[MediaItem]) -> None:
        """Pin exactly these; an entry that was begun and that nobody needs any more is forgotten."""
        self._pinned = {item.encoding_key for item in items} & self._entries.keys()
        for key in self._begun - self._pinned:
            self._forget(key)
        for _ in range(len(self._gone)):
            self._let_pass(self._gone.popleft())

    def _let_pass(self, key: str) -> None:
        item = self._passing.get(key)
        if item is not None and item() is None:
            if key in self._pinned:
                self._gone.append(key)
            else:
                self._forget(key)

    def drop_unpinned(self) -> None:
        """Forget the cache."""
        for key in self._entries.keys() - self._pinned:
            self._forget(key)

    # ------------------------------------------------------------------------------------------- slots of a stream

    def first_missing(self, item: MediaItem, planned: Container[str]) -> MediaItem | None:
        """The first to encode of an item and those before it: that whose own predecessor has left what it needs. None
        where that predecessor is `planned`, so that this one must wait."""
        first = item
        while (before := first.before) is not None and before.encoding_key not in self._left:
            if before.encoding_key in planned:
                return None
            first = before
        return None if first.encoding_key in planned else first

    def hand_over(self, item: MediaItem) -> None:
        """Give a slot the keys and values of its dropped places. The slot before has nothing left then: its successor
        will leave a picture in its stead."""
        if (before := item.before) is None:
            return
        source, entry = self._entries[before.encoding_key], self._entries[item.encoding_key]
        absent = torch.from_numpy(np.flatnonzero(~item.entering.present[0])).to(self._device)
        self._carry(entry, tuple(level[:, absent] for level in source.carry) if len(absent) else ())
        self._carry(source, ())
        del self._left[before.encoding_key]

    def begin_again(self, item: MediaItem, room: Literal["if_it_fits", "anyhow"]) -> bool:
        """Pin a slot that is to be encoded once more, to the same rows, for what it leaves; and the slot before it.
        False where it does not fit. "anyhow" goes over the bound by that slot, so that the first in line gets on."""
        if item.before is not None:
            self.open(item.before)
        entry = self.open(item)
        if entry is None and room == "if_it_fits":
            return False
        entry = entry or self._begin(item)
        entry.next_slot = entry.num_rows = 0
        self._begun.add(item.encoding_key)
        self._pinned.add(item.encoding_key)
        self.events["encoded_again"] += 1
        return True

    def _drop_left(self) -> None:
        """The oldest give way, but for the newest."""
        left = sum(self._left.values())
        while (left > self.max_bytes and len(self._left) > 1) or len(self._left) > MAX_LEFT:
            key, size = self._left.popitem(last=False)
            self._carry(self._entries[key], ())
            left -= size

    # ------------------------------------------------------------------------------------------------------ inside

    def _begin(self, item: MediaItem) -> StoredItem:
        planes, width = self._shape
        rows = torch.empty((planes, item.selection.kept, width), dtype=self._dtype, device=self._device)
        self._begun.add(item.encoding_key)
        self.events["misses"] += 1
        return self._add(item.encoding_key, StoredItem(slots=item.grid.slots, rows=rows))

    def _add(self, key: str, entry: StoredItem) -> StoredItem:
        self._entries[key] = entry
        self._row_bytes += entry.row_bytes
        return entry

    def _carry(self, entry: StoredItem, carry: tuple[torch.Tensor, ...]) -> None:
        self._carry_bytes += _size(carry) - entry.carry_bytes
        entry.carry = carry

    def _forget(self, key: str) -> None:
        entry = self._entries.pop(key)
        self._row_bytes -= entry.row_bytes
        self._carry_bytes -= entry.carry_bytes
        self._begun.discard(key)
        self._left.pop(key, None)
        self._passing.pop(key, None)

    def _make_room(self, wanted_bytes: int) -> bool:
        spare = self.max_bytes - wanted_bytes
        too_many = len(self._entries) + 1 - MAX_ENTRIES
        loose: list[str] = []
        freed = 0
        for key, entry in self._entries.items():
            if self._row_bytes - freed <= spare and len(loose) >= too_many:
                break
            if key not in self._pinned:
                loose.append(key)
                freed += entry.row_bytes
        for key in loose:
            self._forget(key)
            self.events["evictions"] += 1
        return self._row_bytes <= spare


def _size(levels: tuple[torch.Tensor, ...]) -> int:
    return sum(level.numel() * level.element_size() for level in levels)
