"""Pixel values are bit-equal to transformers' processors, whole or slot by slot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

from vision.frames import MediaKind, VideoFrames
from vision.patches import PatchGrid, pixel_values, pixels_sha256
from vision.resize import ImageSmartResize, VideoSmartResize, resize_frames

MEAN, STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]


def as_frames(pixels: np.ndarray, kind: MediaKind = "video") -> VideoFrames:
    count = len(pixels)
    return VideoFrames(
        kind=kind, pixels=pixels, times_s=tuple(index / 2 for index in range(count)),
        frame_indices=tuple(range(count)), duration_s=count / 2, source_fps=2.0, source_size=(1, 1), codec="none",
        container="none", num_frames=count,
    )  # fmt: skip


def random_pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize(("count", "height", "width"), [(2, 37, 61), (5, 120, 97), (8, 64, 96), (11, 300, 33)])
@pytest.mark.parametrize("mean", [MEAN, [0.5, 0.5, 0.5]])
def test_video_equals_transformers(count: int, height: int, width: int, mean: list[float]) -> None:
    """Resize, padding, normalisation and patch order together, on odd sizes and odd frame counts."""
    processor = Qwen3VLVideoProcessor(
        cap_pixels_per_frame=False, do_sample_frames=False, image_mean=mean, image_std=STD, patch_size=16,
        size={"shortest_edge": 4096, "longest_edge": 90_000},
    )  # fmt: skip
    source = random_pixels(count, 3, height, width)
    expected = processor([torch.from_numpy(source)], return_tensors="pt")
    policy = VideoSmartResize(min_pixels=4096, max_pixels=90_000)
    resized = resize_frames(
        torch.from_numpy(source), policy.target_size(count, height, width), interpolation="bicubic"
    ).numpy()
    grid = PatchGrid.from_frames(as_frames(resized), temporal_patch_size=2, patch_size=16, merge_size=2)
    assert [list(grid.patch_grid)] == expected["video_grid_thw"].tolist()
    values = pixel_values(grid, 0, grid.slots, mean=mean, std=STD)
    assert values.dtype == torch.float32
    assert torch.equal(values, expected["pixel_values_videos"])


@pytest.mark.parametrize(("height", "width"), [(37, 61), (120, 97), (200, 501), (28, 28)])
def test_image_equals_transformers(height: int, width: int) -> None:
    """An image is the one-frame case: its frame fills the whole slot."""
    processor = Qwen2VLImageProcessor(size={"shortest_edge": 3136, "longest_edge": 90_000})
    source = random_pixels(3, height, width)
    expected = processor([torch.from_numpy(source)], return_tensors="pt")
    target = ImageSmartResize(max_pixels=90_000).target_size(1, height, width)
    resized = resize_frames(torch.from_numpy(source), target, interpolation="bicubic").numpy()[None]
    grid = PatchGrid.from_frames(as_frames(resized, "image"), temporal_patch_size=2, patch_size=14, merge_size=2)
    assert [list(grid.patch_grid)] == expected["image_grid_thw"].tolist()
    assert torch.equal(pixel_values(grid, 0, 1, mean=MEAN, std=STD), expected["pixel_values"])


def test_slots_together_equal_slots_alone() -> None:
    """What makes it safe to encode a clip in pieces."""
    grid = PatchGrid.from_frames(
        as_frames(random_pixels(7, 3, 64, 96)), temporal_patch_size=2, patch_size=16, merge_size=2
    )
    whole = pixel_values(grid, 0, grid.slots, mean=MEAN, std=STD)
    alone = [pixel_values(grid, slot, slot + 1, mean=MEAN, std=STD) for slot in range(grid.slots)]
    assert torch.equal(torch.cat(alone), whole)
    assert len(pixel_values(grid, 2, 2, mean=MEAN, std=STD)) == 0


@pytest.mark.parametrize(("count", "temporal", "padded"), [(1, 2, 2), (2, 2, 2), (3, 2, 4), (17, 4, 20), (4, 4, 4)])
def test_padding_fills_the_last_slot(count: int, temporal: int, padded: int) -> None:
    """The last real frame and its time are repeated; whole clips are not copied."""
    frames = as_frames(random_pixels(count, 3, 32, 32))
    grid = PatchGrid.from_frames(frames, temporal_patch_size=temporal, patch_size=16, merge_size=2)
    assert len(grid.pixels) == len(grid.times_s) == padded == grid.slots * temporal
    assert (grid.pixels[count:] == frames.pixels[-1]).all()
    assert set(grid.times_s[count:]) <= {frames.times_s[-1]}
    assert np.shares_memory(grid.pixels, frames.pixels) == (padded == count)


def test_counts_agree() -> None:
    grid = PatchGrid.from_frames(
        as_frames(random_pixels(4, 3, 64, 96)), temporal_patch_size=2, patch_size=16, merge_size=2
    )
    assert (grid.slots, grid.grid, grid.cells_per_slot, grid.patches_per_slot) == (2, (2, 3), 6, 24)
    assert pixel_values(grid, 0, 2, mean=MEAN, std=STD).shape == (48, 3 * 2 * 16 * 16)


def test_digest_covers_pixels_and_shape() -> None:
    pixels = random_pixels(2, 3, 64, 32)
    digests = set()
    for variant in (pixels, pixels[::-1].copy(), pixels.reshape(2, 3, 32, 64), pixels ^ 1):
        grid = PatchGrid.from_frames(as_frames(variant), temporal_patch_size=2, patch_size=16, merge_size=2)
        digests.add(pixels_sha256(grid))
    assert len(digests) == 4


def test_shapes_that_do_not_fit_are_refused() -> None:
    frames = as_frames(random_pixels(2, 3, 40, 32))
    with pytest.raises(ValueError, match="32x40 pixels do not divide"):
        PatchGrid.from_frames(frames, temporal_patch_size=2, patch_size=16, merge_size=2)
    grid = PatchGrid.from_frames(
        as_frames(random_pixels(2, 3, 32, 32)), temporal_patch_size=2, patch_size=16, merge_size=2
    )
    with pytest.raises(ValueError, match="slots"):
        pixel_values(grid, 0, 2, mean=MEAN, std=STD)


def as_grid(pictures: int, **cells: Any) -> PatchGrid:
    """Pictures of 10 x 10 patches of 4 pixels, a frame each."""
    pixels = np.zeros((pictures, 3, 40, 40), np.uint8)
    return PatchGrid(pixels=pixels, times_s=(0.0,) * pictures, temporal_patch_size=1, patch_size=4, **cells)


def test_pooled_cells_are_counted_apart_from_patches() -> None:
    clip = as_grid(3, merge_size=1, pooled=(5, 5))
    assert (clip.slots, clip.grid, clip.cells_per_slot, clip.patches_per_slot) == (3, (5, 5), 25, 100)
    tiles = as_grid(3, merge_size=1, pooled=(1, 170), pictures_per_slot=3)
    assert (tiles.slots, tiles.cells_per_slot, tiles.patches_per_slot) == (1, 170, 300)
    assert pixel_values(tiles, 0, 1, mean=[0.5] * 3, std=[0.5] * 3).shape == (300, 3 * 4 * 4)


def test_cells_are_pooled_or_merged() -> None:
    with pytest.raises(ValueError, match="not both"):
        as_grid(1, merge_size=2, pooled=(5, 5))
    with pytest.raises(ValueError, match="2 pictures"):
        as_grid(2, merge_size=1, pictures_per_slot=2)
