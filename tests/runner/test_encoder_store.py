"""Space is taken for whole items, bounded in bytes; what nobody will read is a cache and gives way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from evs.policy import make_policy
from evs.selection import Selection
from runner import encoder_store
from runner.encoder_store import EncoderStore
from runner.items import Link, MediaItem
from tests.runner.test_prompt import make_item
from vision.towers.packed import EncodedCells

ROW_BYTES = 2 * 4 * 4


def make_store(max_bytes: int) -> EncoderStore:
    return EncoderStore(max_bytes=max_bytes, num_planes=1, width=4, dtype=torch.float32, device=torch.device("cpu"))


def cells(count: int, start: float = 0.0) -> EncodedCells:
    rows = torch.arange(4.0 * count).view(count, 4) + start
    return EncodedCells(embeddings=rows, planes=(rows + 100,))


def encode_all(store: EncoderStore, item) -> None:
    assert store.open(item) is not None
    store.write(item, cells(item.selection.kept), item.grid.slots)


def test_an_item_is_opened_only_when_all_of_it_fits() -> None:
    first, second = make_item(np.ones((2, 3), dtype=bool)), make_item(np.ones((1, 6), dtype=bool))
    store = make_store(6 * ROW_BYTES)
    assert store.bytes_of(first) == 6 * ROW_BYTES
    assert store.open(first) is store.open(first)
    assert store.open(second) is None  # the first is pinned
    encode_all(store, first)
    store.keep_pinned(set())
    assert store.open(second) is not None
    assert store.get(first) is None
    assert store.used_bytes == 6 * ROW_BYTES


def test_items_that_encode_alike_share_an_entry() -> None:
    first, again, other = (make_item(np.array([[True, keep]])) for keep in (False, False, True))
    store = make_store(100 * ROW_BYTES)
    encode_all(store, first)
    store.keep_pinned(set())
    assert store.open(again) is store.get(first)
    assert store.open(other) is not store.get(first)
    assert dict(store.events) == {"misses": 2, "hits": 1}


def test_the_least_recently_used_gives_way() -> None:
    items = [make_item(np.ones((1, count), dtype=bool)) for count in (2, 3, 4)]
    store = make_store(6 * ROW_BYTES)
    for item in items[:2]:
        encode_all(store, item)
        store.keep_pinned(set())
    store.open(items[0])
    store.keep_pinned(set())
    encode_all(store, items[2])
    assert store.get(items[1]) is None
    assert store.get(items[0]) is not None


def test_rows_are_written_slot_after_slot() -> None:
    item = make_item(np.array([[True, True, False], [False, True, False]]))
    store = make_store(100 * ROW_BYTES)
    entry = store.open(item)
    assert entry is not None
    store.write(item, cells(2), 1)
    assert (entry.num_rows, entry.is_complete) == (2, False)
    store.write(item, cells(1, start=8.0), 2)
    assert entry.is_complete
    assert torch.equal(entry.rows, torch.stack((cells(3).embeddings, cells(3).planes[0])))


def test_what_was_begun_for_nobody_is_forgotten() -> None:
    item = make_item(np.ones((2, 2), dtype=bool))
    store = make_store(100 * ROW_BYTES)
    entry = store.open(item)
    assert entry is not None
    store.write(item, cells(2), 1)
    store.keep_pinned(set())
    assert store.get(item) is None


def test_pruned_rows_come_from_the_whole_encoding() -> None:
    dense, pruned = make_item(np.ones((2, 2), dtype=bool)), make_item(np.array([[True, True], [False, True]]))
    store = make_store(100 * ROW_BYTES)
    encode_all(store, dense)
    entry = store.get(dense)
    assert entry is not None
    store.add_pruned(pruned, entry)
    found = store.get(pruned)
    assert found is not None
    assert found.is_complete
    assert torch.equal(found.rows, entry.rows[:, [0, 1, 3]])


def test_a_wrong_count_is_our_bug() -> None:
    item = make_item(np.array([[True, False]]))
    store = make_store(100 * ROW_BYTES)
    entry = store.open(item)
    assert entry is not None
    with pytest.raises(AssertionError):
        store.write(item, cells(2), 1)


def linked(keep: list[int], before: MediaItem | None) -> MediaItem:
    item = make_item(np.array([keep], dtype=bool))
    selection = Selection(keep=item.selection.keep, method="gate")
    return MediaItem.of(item.decoded, selection, make_policy("gate"), Link(before=before))


def encode_link(store: EncoderStore, item: MediaItem) -> None:
    """With what it leaves: 8 numbers for each of the picture's patches, 4 a cell."""
    assert store.open(item) is not None
    store.hand_over(item)
    left = torch.zeros((2, item.grid.patches_per_slot, 1, 4))
    found = cells(item.selection.kept)
    store.write(item, EncodedCells(embeddings=found.embeddings, planes=found.planes, carry=(left,)), 1)
    store.keep_pinned(set())


def test_a_slot_leaves_a_picture_to_the_next_alone() -> None:
    """What it reads of it, it is given; the one before has nothing left then, and keeps its rows."""
    first = linked([1, 1, 1], None)
    second = linked([1, 0, 0], first)
    store = make_store(1 << 20)
    encode_link(store, first)
    assert store.first_missing(second, ()) is second
    assert store.first_missing(second, {second.encoding_key}) is None
    assert store.open(second) is not None
    store.hand_over(second)
    entry, before = store.get(second), store.get(first)
    assert entry is not None and before is not None
    assert entry.carry[0].shape[1] == 2 * first.grid.patches_per_slot // 3 and before.carry == ()
    assert store.first_missing(second, ()) is first and before.is_complete
    assert store.first_missing(second, {first.encoding_key}) is None


def test_what_slots_leave_is_bounded() -> None:
    """Four streams of pictures of 3 to 6 cells: the oldest goes, all rows stay; the newest is kept in any room."""
    ends = [linked([1] * count, None) for count in (3, 4, 5, 6)]
    cell_bytes = 4 * 8 * 4
    for max_bytes, held in ((18 * cell_bytes, 4), (15 * cell_bytes, 3), (6 * cell_bytes - 1, 1)):
        store = make_store(max_bytes)
        for item in ends:
            encode_link(store, item)
        entries = [entry for entry in map(store.get, ends) if entry is not None]
        assert [bool(entry.carry) for entry in entries] == [False] * (4 - held) + [True] * held
        assert store.used_bytes == 18 * ROW_BYTES + sum(entry.carry_bytes for entry in entries)


def test_entries_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small they are; the oldest go, and what is left is counted right."""
    monkeypatch.setattr(encoder_store, "MAX_ENTRIES", 5)
    store = make_store(1 << 20)
    items = [linked([1] * count, None) for count in range(1, 13)]
    for item in items:
        encode_link(store, item)
    assert [store.get(item) is not None for item in items] == [False] * 7 + [True] * 5
    assert store.used_bytes == sum(e.row_bytes + e.carry_bytes for e in map(store.get, items) if e is not None)
    store.drop_unpinned()
    assert store.used_bytes == 0


def test_what_passed_is_forgotten_with_its_item() -> None:
    """Once nobody reads it; and not while another item of the same rows lives."""
    store = make_store(100 * ROW_BYTES)
    stays, goes, twin = (replace(make_item(np.ones((1, 4), dtype=bool)), encoding_key=key) for key in "abb")
    items = [stays, replace(goes, passes=True), replace(twin, passes=True)]
    del stays, goes, twin
    for item in items:
        encode_all(store, item) if store.get(item) is None else store.open(item)
    del item, items[1]
    store.keep_pinned(set(items))
    assert store.used_bytes == 8 * ROW_BYTES
    kept = {items[0], items[1]}
    del items[1]
    store.keep_pinned(kept)
    assert store.used_bytes == 8 * ROW_BYTES  # read by a sequence
    del kept
    store.keep_pinned(set())
    assert store.used_bytes == 4 * ROW_BYTES and store.get(items[0]) is not None
    del items[0]
    store.keep_pinned(set())
    assert store.used_bytes == 4 * ROW_BYTES  # a clip may be asked about again
