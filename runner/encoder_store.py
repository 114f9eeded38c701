"""Encoder outputs between the encoder and prefill, bounded in bytes. Owns their memory and progress; knows no
scheduler.

An entry is one item's kept cells. Space for the whole entry is taken when its encoding begins, so that what was begun
can always be finished.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runner.items import MediaItem
from vision.towers.packed import EncodedCells


@dataclass(slots=True, kw_only=True, eq=False)
class StoredItem:
    """rows: (1 + planes, kept, D), of which the first `num_rows` are written; slots [0, next_slot) are encoded."""

    item: MediaItem
    rows: torch.Tensor
    next_slot: int = 0
    num_rows: int = 0

    @property
    def is_complete(self) -> bool:
        return self.next_slot == self.item.grid.slots


class EncoderStore:
    """Entries by item (an item is one decoded picture or clip of one request, shared by its n answers)."""

    def __init__(
        self, *, max_bytes: int, num_planes: int, width: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.max_bytes = max_bytes
        self._shape = (1 + num_planes, width)
        self._dtype, self._device = dtype, device
        self._entries: dict[MediaItem, StoredItem] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def bytes_of(self, item: MediaItem) -> int:
        planes, width = self._shape
        return planes * width * self._dtype.itemsize * item.selection.kept

    @property
    def used_bytes(self) -> int:
        return sum(self.bytes_of(item) for item in self._entries)

    def get(self, item: MediaItem) -> StoredItem | None:
        return self._entries.get(item)

    def open(self, item: MediaItem) -> StoredItem | None:
        """The item's entry, begun if need be; None while there is no room for it."""
        entry = self._entries.get(item)
        if entry is None and self.used_bytes + self.bytes_of(item) <= self.max_bytes:
            planes, width = self._shape
            rows = torch.empty((planes, item.selection.kept, width), dtype=self._dtype, device=self._device)
            entry = self._entries[item] = StoredItem(item=item, rows=rows)
        return entry

    def write(self, entry: StoredItem, cells: EncodedCells, slot_stop: int) -> None:
        """Append the kept cells of slots [next_slot, slot_stop)."""
        stop = entry.num_rows + len(cells.embeddings)
        assert stop == entry.item.kept_before(slot_stop), (stop, entry.item.kept_before(slot_stop))
        for plane, rows in zip(entry.rows, (cells.embeddings, *cells.planes), strict=True):
            plane[entry.num_rows : stop] = rows
        entry.num_rows, entry.next_slot = stop, slot_stop

    def drop(self, item: MediaItem) -> None:
        self._entries.pop(item, None)

    def items(self) -> list[MediaItem]:
        return list(self._entries)
