"""Sizes and resampling equal transformers', for any shape."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as tv
from transformers.image_utils import SizeDict
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize as image_oracle
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

from vision.errors import InvalidMediaOptionError
from vision.resize import FixedSize, ImageSmartResize, Interpolation, VideoSmartResize, resize_frames


def shapes(count: int, seed: int) -> list[tuple[int, int]]:
    rng = np.random.default_rng(seed)
    sides = np.exp(rng.uniform(np.log(1), np.log(3000), size=(count, 2))).astype(int) + 1
    return [(int(h), int(w)) for h, w in sides if max(h, w) / min(h, w) <= 190]


@pytest.mark.parametrize("cap", ["on", "off"])
@pytest.mark.parametrize(("low", "high"), [(128 * 32 * 32, 768 * 32 * 32), (4096, 25_165_824), (1, 40_000)])
def test_video_sizes_equal_transformers(cap: str, low: int, high: int) -> None:
    """The oracle runs on empty tensors: its resize is asked only for the size it would make."""
    processor = Qwen3VLVideoProcessor(cap_pixels_per_frame=cap == "on")
    policy = VideoSmartResize(min_pixels=low, max_pixels=high, cap_pixels_per_frame=cap)  # type: ignore[arg-type]
    for number, (height, width) in enumerate(shapes(120, seed=1)):
        frames = 2 + number % 9
        oracle = processor.resize(
            torch.empty(1, frames, 3, height, width, device="meta", dtype=torch.uint8),
            size=SizeDict(shortest_edge=low, longest_edge=high), resample=None, factor=32, temporal_factor=2,
            cap_pixels_per_frame=cap == "on",
        )  # fmt: skip
        assert policy.target_size(frames, height, width) == tuple(oracle.shape[-2:]), (frames, height, width)


def test_one_frame_counts_as_a_full_slot() -> None:
    policy = VideoSmartResize()
    assert policy.target_size(1, 1080, 1920) == policy.target_size(2, 1080, 1920)


@pytest.mark.parametrize(("low", "high", "factor"), [(3136, 1_003_520, 28), (65_536, 16_777_216, 32), (1, 20_480, 32)])
def test_image_sizes_equal_transformers(low: int, high: int, factor: int) -> None:
    policy = ImageSmartResize(factor=factor, min_pixels=low, max_pixels=high)
    for height, width in shapes(400, seed=2):
        expected = image_oracle(height, width, factor=factor, min_pixels=low, max_pixels=high)
        assert policy.target_size(1, height, width) == expected, (height, width)


@pytest.mark.parametrize("policy", [VideoSmartResize(min_pixels=1), ImageSmartResize(min_pixels=1)])
@pytest.mark.parametrize("size", [(1, 1), (2, 2), (16, 16), (10, 1500), (31, 639)])
def test_tiny_sides_give_at_least_one_cell(policy: VideoSmartResize | ImageSmartResize, size: tuple[int, int]) -> None:
    height, width = policy.target_size(4, *size)
    assert min(height, width) >= policy.factor
    assert (height % policy.factor, width % policy.factor) == (0, 0)


@pytest.mark.parametrize("policy", [VideoSmartResize(), ImageSmartResize()])
@pytest.mark.parametrize("size", [(64, 20_000), (20_000, 64)])
def test_extreme_shapes_are_refused_with_the_limit(
    policy: VideoSmartResize | ImageSmartResize, size: tuple[int, int]
) -> None:
    with pytest.raises(InvalidMediaOptionError, match="at most 200"):
        policy.target_size(2, *size)


def test_budgets_that_contradict_are_refused() -> None:
    with pytest.raises(InvalidMediaOptionError, match="min_pixels") as caught:
        VideoSmartResize(min_pixels=10, max_pixels=9)
    assert caught.value.param == "min_pixels"
    with pytest.raises(InvalidMediaOptionError):
        ImageSmartResize(max_pixels=0)


def test_fixed_size_is_fixed() -> None:
    assert FixedSize(height=384, width=380).target_size(9, 17, 5) == (384, 380)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_one_frame_at_a_time_equals_all_at_once(interpolation: Interpolation) -> None:
    """Frames are resized singly, with channels last, as they are decoded; the processors resize a whole clip."""
    rng = np.random.default_rng(3)
    for height, width, new_height, new_width in rng.integers(3, 220, size=(12, 4)).tolist():
        frames = torch.from_numpy(rng.integers(0, 256, (3, height, width, 3), dtype=np.uint8))
        whole = tv.resize(
            frames.permute(0, 3, 1, 2).contiguous(), [new_height, new_width],
            interpolation=tv.InterpolationMode(interpolation), antialias=True,
        )  # fmt: skip
        for frame, expected in zip(frames, whole, strict=True):
            single = resize_frames(frame.permute(2, 0, 1), (new_height, new_width), interpolation=interpolation)
            assert torch.equal(single, expected)
