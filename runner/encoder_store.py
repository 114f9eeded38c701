"""Encoder outputs: those that wait for prefill, and those kept for the next question. Owns their memory and progress,
bounded in bytes; knows no scheduler.

An entry is one item's kept cells. Space for the whole entry is taken when its encoding begins, so that what was begun
can always be finished. What a clip that is encoded in parts carries from one to the next comes on top while it lasts:
the keys and values of one picture, and of one clip at a time, for a clip that is cut ends a step's encoding. Entries
that a running sequence will read are pinned; the others are a cache, and give way in the order in which they were last
used.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass

import torch

from runner.items import MediaItem
from vision.towers.packed import EncodedCells


@dataclass(slots=True, kw_only=True, eq=False)
class StoredItem:
    """rows: (1 + planes, kept, D), of which the first `num_rows` are written; slots [0, next_slot) are encoded. carry:
    keys and values, layer by layer, that the encoding of the next slots will read."""

    item: MediaItem
    rows: torch.Tensor
    carry: tuple[torch.Tensor, ...] = ()
    next_slot: int = 0
    num_rows: int = 0

    @property
    def is_complete(self) -> bool:
        return self.next_slot == self.item.grid.slots

    @property
    def size_bytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in (self.rows, *self.carry))


class EncoderStore:
    """Entries by encoding key: items of different requests that would encode to the same rows share one."""

    def __init__(
        self, *, max_bytes: int, num_planes: int, width: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.max_bytes = max_bytes
        self._shape = (1 + num_planes, width)
        self._dtype, self._device = dtype, device
        self._entries: OrderedDict[str, StoredItem] = OrderedDict()
        self._pinned: set[str] = set()
        self.events: Counter[str] = Counter()

    @property
    def num_pinned(self) -> int:
        return len(self._pinned)

    @property
    def used_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self._entries.values())

    def bytes_of(self, item: MediaItem) -> int:
        planes, width = self._shape
        return planes * width * self._dtype.itemsize * item.selection.kept

    def get(self, item: MediaItem) -> StoredItem | None:
        return self._entries.get(item.encoding_key)

    def open(self, item: MediaItem) -> StoredItem | None:
        """The item's entry, pinned and begun if need be; None while pinned entries leave no room for it."""
        entry = self._entries.get(item.encoding_key)
        if entry is None:
            if not self._make_room(self.bytes_of(item)):
                return None
            planes, width = self._shape
            rows = torch.empty((planes, item.selection.kept, width), dtype=self._dtype, device=self._device)
            entry = self._entries[item.encoding_key] = StoredItem(item=item, rows=rows)
            self.events["misses"] += 1
        elif item.encoding_key not in self._pinned:
            self.events["hits"] += 1
        self._entries.move_to_end(item.encoding_key)
        self._pinned.add(item.encoding_key)
        return entry

    def write(self, entry: StoredItem, cells: EncodedCells, slot_stop: int) -> None:
        """Append the kept cells of slots [next_slot, slot_stop)."""
        stop = entry.num_rows + len(cells.embeddings)
        assert stop == entry.item.kept_before(slot_stop), (stop, entry.item.kept_before(slot_stop))
        for plane, rows in zip(entry.rows, (cells.embeddings, *cells.planes), strict=True):
            plane[entry.num_rows : stop] = rows
        entry.num_rows, entry.carry = stop, cells.carry
        entry.next_slot = entry.item.entering.reach(slot_stop, 0)  # slots that keep nothing are done as they stand

    def add_pruned(self, item: MediaItem, dense: StoredItem) -> None:
        """An entry for an item whose Selection was made from the whole encoding; left out when there is no room."""
        if item.encoding_key in self._entries or not self._make_room(self.bytes_of(item)):
            return
        rows = dense.rows[:, torch.from_numpy(item.selection.kept_cells).to(self._device)]
        self._entries[item.encoding_key] = StoredItem(
            item=item, rows=rows, next_slot=item.grid.slots, num_rows=item.selection.kept
        )

    def keep_pinned(self, items: set[MediaItem]) -> None:
        """Pin exactly these; an entry that was begun and that nobody needs any more is forgotten."""
        self._pinned = {item.encoding_key for item in items} & self._entries.keys()
        for key in [k for k, entry in self._entries.items() if k not in self._pinned and not entry.is_complete]:
            del self._entries[key]

    def drop_unpinned(self) -> None:
        """Forget the cache."""
        for key in [key for key in self._entries if key not in self._pinned]:
            del self._entries[key]

    def _make_room(self, wanted_bytes: int) -> bool:
        used = self.used_bytes
        loose = [key for key in self._entries if key not in self._pinned]
        for key in loose:
            if used + wanted_bytes <= self.max_bytes:
                break
            used -= self._entries[key].size_bytes
            del self._entries[key]
            self.events["evictions"] += 1
        return used + wanted_bytes <= self.max_bytes
