"""Space is taken for whole items, bounded in bytes, and given back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from runner.encoder_store import EncoderStore
from tests.runner.test_prompt import make_item
from vision.towers.packed import EncodedCells


def make_store(max_bytes: int) -> EncoderStore:
    return EncoderStore(max_bytes=max_bytes, num_planes=1, width=4, dtype=torch.float32, device=torch.device("cpu"))


def test_an_item_is_opened_only_when_all_of_it_fits() -> None:
    first, second = (make_item(np.ones((2, 3), dtype=bool)) for _ in range(2))
    store = make_store(2 * 4 * 4 * 6)
    assert store.bytes_of(first) == 192
    assert store.open(first) is store.open(first)
    assert store.open(second) is None
    store.drop(first)
    assert store.open(second) is not None
    assert store.used_bytes == 192


def test_rows_are_written_slot_after_slot() -> None:
    item = make_item(np.array([[True, True, False], [False, True, False]]))
    store = make_store(1000)
    entry = store.open(item)
    assert entry is not None
    rows = torch.arange(12.0).view(3, 4)
    store.write(entry, EncodedCells(embeddings=rows[:2], planes=(rows[:2] + 100,)), 1)
    assert (entry.num_rows, entry.is_complete) == (2, False)
    store.write(entry, EncodedCells(embeddings=rows[2:], planes=(rows[2:] + 100,)), 2)
    assert entry.is_complete
    assert torch.equal(entry.rows, torch.stack((rows, rows + 100)))


def test_a_wrong_count_is_our_bug() -> None:
    item = make_item(np.array([[True, False]]))
    store = make_store(1000)
    entry = store.open(item)
    assert entry is not None
    with pytest.raises(AssertionError):
        store.write(entry, EncodedCells(embeddings=torch.zeros(2, 4), planes=(torch.zeros(2, 4),)), 1)
