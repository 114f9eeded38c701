"""Plans what one step encodes: slots of different clips and images together, first come first served. Owns the order
and the patch budget; knows no sequences and no tensors' contents.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from runner.encoder_store import EncoderStore, StoredItem
from runner.items import MediaItem


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderWork:
    """Encode slots [slot_start, slot_stop) of an item."""

    item: MediaItem
    slot_start: int
    slot_stop: int


class EncoderQueue:
    """The encoder work of one step. max_patches: what all of it together may encode; a slot larger than that goes
    alone. Work is cut between slots only, and once an item has been cut nothing is planned behind it."""

    def __init__(self, store: EncoderStore, max_patches: int) -> None:
        self._store = store
        self._left = max_patches
        self._is_open = True
        self._stops: dict[str, int] = {}
        self.work: list[EncoderWork] = []

    def plan(self, items: Iterable[MediaItem]) -> None:
        """Plan what these, which are needed in this order, still lack."""
        for item in items:
            if item.encoding_key in self._stops:
                continue  # the same clip may stand in one prompt twice
            if not self._is_open:
                return
            entry = self._store.open(item)
            if entry is None:
                return  # waits for room: those before it will make some
            if not entry.is_complete:
                self._take_slots(entry)

    def encoded_slots(self, item: MediaItem) -> int:
        """How many of the item's slots are encoded once this step's encoder has run."""
        entry = self._store.get(item)
        return self._stops.get(item.encoding_key, entry.next_slot if entry is not None else 0)

    def _take_slots(self, entry: StoredItem) -> None:
        """As many as fit, at least one if this is the step's first work. With `full` each run of slots that keep
        something is a work of its own; the other modes encode nothing of a slot that keeps nothing."""
        item, start = entry.item, entry.next_slot
        entering = item.entering
        stop = entering.reach(start, self._left)
        patches = int(entering.before[stop] - entering.before[start])
        if not patches and not self.work:
            stop = entering.reach(entering.next_stop(start), 0)
            patches = int(entering.before[stop] - entering.before[start])
        self._left = max(0, self._left - patches)
        self._is_open = stop == item.grid.slots
        if not patches:
            return
        runs = entering.runs(start, stop) if item.encoder == "full" else [(start, stop)]
        self.work += [EncoderWork(item=item, slot_start=first, slot_stop=last) for first, last in runs]
        self._stops[item.encoding_key] = stop
