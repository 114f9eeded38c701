"""What fills a batch up stands behind it, sees itself alone, and has places of pictures like the batch's own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from vision.towers.keys import hand_over_keys, own_keys
from vision.towers.packed import PatchBatch
from vision.towers.padding import lengthen_batch, pad_batch, segments_to_fill
from vision.towers.pooling import CellTaps


def batch(*, keyed: bool) -> PatchBatch:
    cu_seqlens = np.array([0, 4, 6])
    return PatchBatch(
        pixel_values=torch.ones(6, 3), rows=np.arange(6), cols=np.arange(6) + 10, heights=np.full(6, 9),
        widths=np.full(6, 20), cu_seqlens=cu_seqlens, keys=own_keys(cu_seqlens) if keyed else None,
        taps=CellTaps(patches=np.arange(8).reshape(2, 4) % 6, weights=np.ones((2, 4), np.float32)),
    )  # fmt: skip


def test_the_worked_example() -> None:
    plain = batch(keyed=False)
    assert segments_to_fill(plain, 15) == 3
    padded = pad_batch(plain, 15, 6)
    assert padded.cu_seqlens.tolist() == [0, 4, 6, 10, 14, 15, 15]
    assert padded.rows.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert padded.cols.tolist()[6:] == [10, 11, 12, 13, 10, 11, 12, 13, 10]
    assert padded.pixel_values.sum(1).tolist() == [3.0] * 6 + [0.0] * 9
    assert padded.keys is None and padded.taps is not None
    assert padded.taps.weights.sum(1).tolist() == [4.0, 4.0] + [0.0] * 13


def test_what_fills_up_sees_itself() -> None:
    keys = pad_batch(batch(keyed=True), 15, 6).keys
    assert keys is not None
    assert keys.index.tolist() == list(range(15))
    assert keys.cu_keys.tolist() == [0, 4, 6, 10, 14, 15, 15]


def test_a_full_batch_is_only_given_empty_segments() -> None:
    padded = pad_batch(batch(keyed=True), 6, 4)
    assert padded.cu_seqlens.tolist() == [0, 4, 6, 6, 6] and len(padded.pixel_values) == 6


def test_a_batch_is_lengthened_by_what_nobody_sees() -> None:
    """The worked example of lengthen_batch; pooled cells are as many as before."""
    plain, keyed = (batch(keyed=by_number) for by_number in (False, True))
    longer = lengthen_batch(plain, 8)
    assert longer.cu_seqlens.tolist() == [0, 4, 6, 8] and longer.keys is None
    by_number = lengthen_batch(keyed, 8)
    assert by_number.cu_seqlens.tolist() == [0, 4, 8] and by_number.keys is keyed.keys
    assert by_number.rows.tolist() == [0, 1, 2, 3, 4, 5, 5, 5] and by_number.cols.tolist()[6:] == [15, 15]
    for found in (longer, by_number):
        assert found.pixel_values.sum(1).tolist() == [3.0] * 6 + [0.0] * 2
        assert found.taps is plain.taps or found.taps is keyed.taps
    assert lengthen_batch(plain, 6) is plain


def test_what_is_carried_stays() -> None:
    keys = hand_over_keys(np.array([True, False, True]), places=(np.arange(3), np.arange(3)))
    two = replace(
        batch(keyed=False), pixel_values=torch.ones(2, 3), cu_seqlens=np.array([0, 2]), keys=keys, taps=None,
        **{name: np.arange(2) for name in ("rows", "cols", "heights", "widths")},
    )  # fmt: skip
    longer = lengthen_batch(two, 4)
    assert longer.keys is keys and longer.cu_seqlens.tolist() == [0, 4]
