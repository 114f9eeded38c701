"""Law 2 and the layout half of law 3: rows = kept cells, kept cells keep their positions, text continues as if
dense."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from runner.families.base import DenseSpan
from runner.items import MediaItem
from runner.prompt import Prompt, prune_prompt
from tests.items import item_of
from vision.frames import VideoFrames
from vision.patches import PatchGrid


def make_item(keep: np.ndarray, kind: str = "video") -> MediaItem:
    """An item of (T, P) cells in one row; pixels do not matter here."""
    slots, cells = keep.shape
    pixels = np.zeros((slots * 2, 3, 32, 32 * cells), dtype=np.uint8)
    times = tuple(float(i) for i in range(slots * 2))
    frames = VideoFrames(
        kind=kind, pixels=pixels, times_s=times, frame_indices=tuple(range(slots * 2)), duration_s=1.0, source_fps=2.0,
        source_size=(32, 32), codec="x", container="y", num_frames=slots * 2,
    )  # fmt: skip
    grid = PatchGrid(pixels=pixels, times_s=times, temporal_patch_size=2, patch_size=16, merge_size=2)
    return item_of(frames, grid, keep)


def test_pruning_is_the_worked_example() -> None:
    item = make_item(np.array([[True, False, True]]))
    prompt = prune_prompt(
        np.array([5, 9, 9, 9, 6]), np.arange(5)[None], [DenseSpan(item=0, start=1, cells=np.arange(3))], [item]
    )
    assert prompt.token_ids.tolist() == [5, 9, 9, 6]
    assert prompt.positions.tolist() == [[0, 1, 3, 4]]
    assert prompt.rank.tolist() == [-1, 0, 1, -1]
    assert prompt.item.tolist() == [-1, 0, 0, -1]
    assert prompt.next_position == 5


def test_what_the_next_rows_read_is_the_worked_example() -> None:
    item = np.array([-1, 1, 0, 1, -1, 0], np.int32)
    rows = Prompt(
        token_ids=np.arange(6), positions=np.arange(6)[None], item=item, rank=np.minimum(item, 0), next_position=6
    )
    assert [rows.items_from(row) for row in (0, 2, 4, 6)] == [[1], [0], [0], []]
    assert replace(rows, ranges=((1, 4),)).items_from(1) == [0, 1]


def test_text_continues_at_the_dense_maximum_though_the_last_cells_are_dropped() -> None:
    item = make_item(np.array([[True, False, False]]))
    prompt = prune_prompt(
        np.array([9, 9, 9]), np.array([[0, 1, 2], [7, 8, 9]]), [DenseSpan(item=0, start=0, cells=np.arange(3))], [item]
    )
    assert prompt.next_position == 10


@pytest.mark.parametrize("seed", range(10))
def test_kept_rows_keep_their_columns(seed: int) -> None:
    rng = np.random.default_rng(seed)
    keep = rng.random((int(rng.integers(1, 5)), int(rng.integers(1, 6)))) < 0.5
    keep[0, 0] = True
    item = make_item(keep)
    size, before, after = keep.size, int(rng.integers(0, 4)), int(rng.integers(0, 4))
    tokens = np.concatenate((np.full(before, 1), np.full(size, 9), np.full(after, 2)))
    positions = rng.integers(0, 50, (3, len(tokens)))
    prompt = prune_prompt(tokens, positions, [DenseSpan(item=0, start=before, cells=np.arange(size))], [item])
    columns = [*range(before), *(before + np.flatnonzero(keep)), *range(before + size, len(tokens))]
    assert (prompt.positions == positions[:, columns]).all()
    assert prompt.positions.dtype == np.int64
    assert (prompt.item >= 0).sum() == keep.sum() == item.selection.kept
    assert prompt.rank[prompt.item >= 0].tolist() == list(range(int(keep.sum())))


def test_a_prompt_cannot_be_changed() -> None:
    prompt = prune_prompt(np.array([1]), np.zeros((1, 1), np.int64), [], [])
    with pytest.raises(ValueError, match="read-only"):
        prompt.token_ids[0] = 2
