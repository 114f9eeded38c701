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
    alone. Work is cut between slots only, and once an item has been cut nothing is planned behind it. Of the linked
    slots of a stream a step encodes one, for the next reads what that one leaves; streams go side by side."""

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
            if entry.is_complete:
                continue
            if item.link is None:
                self._take_slots(item, entry)
            elif not self._take_link(item):
                return

    def encoded_slots(self, item: MediaItem) -> int:
        """How many of the item's slots are encoded once this step's encoder has run."""
        entry = self._store.get(item)
        return self._stops.get(item.encoding_key, entry.next_slot if entry is not None else 0)

    def _take_link(self, item: MediaItem) -> bool:
        """Plan a slot of a stream, or the first before it that must be encoded once more for what it leaves; nothing
        where this step encodes the one before. False where there is no room."""
        first = self._store.first_missing(item, self._stops)
        if first is None:
            return True
        patches = int(first.entering.before[-1])
        if self.work and patches > self._left:
            self._is_open = False
            return False
        if first is not item and not self._store.begin_again(first, "anyhow" if not self.work else "if_it_fits"):
            return False
        self._store.hand_over(first)
        self._left = max(0, self._left - patches)
        self.work.append(EncoderWork(item=first, slot_start=0, slot_stop=1))
        self._stops[first.encoding_key] = 1
        return True

    def _take_slots(self, item: MediaItem, entry: StoredItem) -> None:
        """As many as fit, at least one if this is the step's first work. With `full` each run of slots that keep
        something is a work of its own; the other modes encode nothing of a slot that keeps nothing."""
        start, entering = entry.next_slot, item.entering
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
