"""The packed forward of Qwen2.5-VL's tower: whatever stands beside a slot, and however the work is cut, its cells come
out as transformers' own tower gives them for the clip alone."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from runner.encoder_attention import plan_segments
from tests.checkpoints.qwen2_5_vl import make_qwen2_5_vl, make_qwen2_vl
from vision.towers.arranged import encode_arranged
from vision.towers.keys import Segments
from vision.towers.packed import PatchBatch, concatenate, patch_places
from vision.towers.qwen2_5_vl import Qwen25VLTower, window_order
from vision.towers.rotary import Attend

# (slots, rows, columns) in patches; windows are 4 x 4 patches. Whole windows alone, windows cut at the right, at the
# bottom, at both, and pictures smaller than a window.
GRIDS = [(1, 4, 4), (3, 6, 10), (2, 10, 6), (4, 8, 8), (1, 2, 2), (2, 2, 14), (5, 4, 10)]
TOLERANCE = 2e-5


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen2_vl"])
def tower(request: pytest.FixtureRequest) -> Any:
    make = {"qwen2_5_vl": make_qwen2_5_vl, "qwen2_vl": make_qwen2_vl}[request.param]
    return make()[0].model.visual.eval()


def noise_batch(grid: tuple[int, int, int], seed: int) -> PatchBatch:
    slots, height, width = grid
    rows, cols = patch_places(height, width, 2)
    count = slots * height * width
    return PatchBatch(
        pixel_values=torch.randn(count, 3 * 2 * 14 * 14, generator=torch.Generator().manual_seed(seed)),
        rows=np.tile(rows, slots), cols=np.tile(cols, slots),
        heights=np.full(count, height), widths=np.full(count, width),
        cu_seqlens=np.arange(slots + 1) * height * width,
    )  # fmt: skip


def cut_slots(batch: PatchBatch, start: int, stop: int) -> PatchBatch:
    rows = slice(int(batch.cu_seqlens[start]), int(batch.cu_seqlens[stop]))
    return PatchBatch(
        pixel_values=batch.pixel_values[rows], rows=batch.rows[rows], cols=batch.cols[rows],
        heights=batch.heights[rows], widths=batch.widths[rows],
        cu_seqlens=batch.cu_seqlens[start : stop + 1] - batch.cu_seqlens[start],
    )  # fmt: skip


@torch.inference_mode()
def ours(tower: Any, batch: PatchBatch) -> torch.Tensor:
    return encode_arranged(Qwen25VLTower(tower), batch, plan_segments).embeddings


@torch.inference_mode()
def theirs(tower: Any, batch: PatchBatch, grid: tuple[int, int, int]) -> torch.Tensor:
    return tower(batch.pixel_values, grid_thw=torch.tensor([grid])).pooler_output


@pytest.mark.parametrize("grid", GRIDS)
def test_one_clip_equals_the_oracle(tower: Any, grid: tuple[int, int, int]) -> None:
    batch = noise_batch(grid, 0)
    expected = theirs(tower, batch, grid)
    assert expected.std() > 0.3
    torch.testing.assert_close(ours(tower, batch), expected, atol=TOLERANCE, rtol=TOLERANCE)


def test_clips_packed_together_equal_each_alone(tower: Any) -> None:
    """No row of one clip reaches another's, and the packed rows come back in the order in which they were given."""
    batches = [noise_batch(grid, seed) for seed, grid in enumerate(GRIDS)]
    expected = [theirs(tower, batch, grid) for batch, grid in zip(batches, GRIDS, strict=True)]
    packed = ours(tower, concatenate(batches)).split([len(cells) for cells in expected])
    for got, alone in zip(packed, expected, strict=True):
        torch.testing.assert_close(got, alone, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("cuts", [(0, 1, 2, 3, 4, 5), (0, 2, 5), (0, 4, 5)])
def test_work_cut_between_slots_equals_all_at_once(tower: Any, cuts: tuple[int, ...]) -> None:
    grid = (5, 6, 10)
    batch = noise_batch(grid, 3)
    parts = [ours(tower, cut_slots(batch, start, stop)) for start, stop in itertools.pairwise(cuts)]
    torch.testing.assert_close(torch.cat(parts), theirs(tower, batch, grid), atol=TOLERANCE, rtol=TOLERANCE)


def test_the_comparison_would_notice_other_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: windows twice as wide, or none, give other cells."""
    tower = make_qwen2_5_vl()[0].model.visual.eval()
    batch = noise_batch((2, 8, 8), 4)
    expected = theirs(tower, batch, (2, 8, 8))
    torch.testing.assert_close(ours(tower, batch), expected, atol=TOLERANCE, rtol=TOLERANCE)
    for name, value in (("window_size", 112), ("fullatt_block_indexes", [0, 1, 2, 3])):
        with monkeypatch.context() as patch:
            patch.setattr(tower, name, value)
            assert (ours(tower, batch) - expected).abs().max() > 100 * TOLERANCE


def test_worked_example_of_the_window_order() -> None:
    order, windows = window_order(noise_batch((1, 2, 6), 0), 4)
    assert order.tolist() == [8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 6, 7]
    assert windows.cu_seqlens.tolist() == [0, 4, 12]
    assert windows.index is None


def test_windows_of_one_size_stand_together_over_all_slots_and_clips() -> None:
    """Few large operators: as many runs of equal windows as there are sizes, however many slots there are."""
    batch = concatenate([noise_batch((40, 6, 10), 0), noise_batch((7, 10, 6), 1)])
    order, windows = window_order(batch, 4)
    lengths = np.diff(windows.cu_seqlens)
    assert lengths.tolist() == sorted(lengths.tolist())
    assert sorted(set(lengths.tolist())) == [4, 8, 16]
    assert sorted(order.tolist()) == list(range(len(batch.rows)))
    assert (order.reshape(-1, 4) == order.reshape(-1, 4)[:, :1] + np.arange(4)).all()  # cells stay whole


def test_each_layer_attends_in_its_own_segments(tower: Any) -> None:
    """Windows in the windowed layers, whole slots in the others; planned once for a batch, not once for a layer."""
    planned: list[list[int]] = []
    called: list[int] = []

    def plan(segments: Segments) -> Attend:
        index, real = len(planned), plan_segments(segments)
        planned.append(np.diff(segments.cu_seqlens).tolist())

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
            called.append(index)
            return real(q, k, v, scale)

        return attend

    with torch.inference_mode():
        encode_arranged(Qwen25VLTower(tower), noise_batch((2, 4, 6), 0), plan)
    assert planned[0] == [24, 24]
    if hasattr(tower, "window_size"):
        assert planned[1:] == [[8, 8, 16, 16]]
        assert called == [1, 0, 1, 0]
    else:
        assert planned[1:] == []
        assert called == [0, 0]
