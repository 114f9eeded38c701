"""Which size a clip is shown to the model at, and the resampling itself.

Owns the size rules of model families and one resampling call; knows nothing of decoding or patches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as tv

from vision.errors import InvalidMediaOptionError

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
Antialias = Literal["on", "off"]

MAX_ASPECT_RATIO = 200.0


class ResizePolicy(Protocol):
    """How a family chooses the size of its input. Must be picklable: it is sent to the decoding process.

    A family that cuts a picture into tiles chooses here the canvas that the tiles are cut from.
    """

    def target_size(self, num_frames: int, height: int, width: int) -> tuple[int, int]:
        """(height, width) for `num_frames` pictures of (height, width) pixels as shown.

        Raises InvalidMediaOptionError when no size can satisfy the rule.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoSmartResize:
    """Qwen3-VL's rule: both sides a multiple of `factor`, the pixels of *all* frames within a budget.

    factor: pixels of one cell's side (patch size x merge size).
    temporal_factor: frames in a slot; the frame count is rounded to it. A single frame counts as a full slot.
    min_pixels, max_pixels: bounds on frames x height x width.
    cap_pixels_per_frame: "on" also bounds each frame to `max_video_tokens` cells or to its even share of the budget.
    min_frame_pixels: also a lower bound, on each frame's height x width, where the budget allows it.
    """

    factor: int = 32
    temporal_factor: int = 2
    min_pixels: int = 128 * 32 * 32
    max_pixels: int = 768 * 32 * 32
    cap_pixels_per_frame: Literal["on", "off"] = "off"
    max_video_tokens: int = 768
    min_frame_pixels: int = 0

    def __post_init__(self) -> None:
        _check_budget(self.factor, self.min_pixels, self.max_pixels)

    def target_size(self, num_frames: int, height: int, width: int) -> tuple[int, int]:
        frames = max(num_frames, self.temporal_factor)
        upscale = max(self.factor / height, self.factor / width)
        if upscale > 1:
            height, width = int(height * upscale), int(width * upscale)
        _check_aspect(height, width)
        counted = round(frames / self.temporal_factor) * self.temporal_factor
        return _fit_budget(
            height, width, factor=self.factor, frames=frames, counted_frames=counted,
            min_pixels=max(self.min_pixels, self.min_frame_pixels * frames), max_pixels=self._budget(frames),
        )  # fmt: skip

    def _budget(self, frames: int) -> int:
        if self.cap_pixels_per_frame == "off":
            return self.max_pixels
        share = min(self.max_video_tokens * self.factor**2, self.max_pixels // frames)
        return max(share, int(self.min_pixels * 1.05)) * frames


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSmartResize:
    """Qwen2-VL's rule for pictures: both sides a multiple of `factor`, height x width within bounds."""

    factor: int = 28
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280

    def __post_init__(self) -> None:
        _check_budget(self.factor, self.min_pixels, self.max_pixels)

    def target_size(self, num_frames: int, height: int, width: int) -> tuple[int, int]:  # noqa: ARG002 (each picture alone)
        _check_aspect(height, width)
        return _fit_budget(
            height, width, factor=self.factor, frames=1, counted_frames=1,
            min_pixels=self.min_pixels, max_pixels=self.max_pixels,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSmartResize:
    """Qwen2-VL's rule for clips: both sides a multiple of `factor`, height x width of each frame within bounds.

    min_pixels, max_pixels: bounds on one frame's height x width.
    total_pixels: also bounds each frame to its slot's even share of this, though never below 1.05 x min_pixels. None:
        long clips cost as much per frame as short ones.
    """

    factor: int = 28
    temporal_factor: int = 2
    min_pixels: int = 128 * 28 * 28
    max_pixels: int = 768 * 28 * 28
    total_pixels: int | None = None

    def __post_init__(self) -> None:
        _check_budget(self.factor, self.min_pixels, self.max_pixels)

    def target_size(self, num_frames: int, height: int, width: int) -> tuple[int, int]:
        _check_aspect(height, width)
        return _fit_budget(
            height, width, factor=self.factor, frames=1, counted_frames=1,
            min_pixels=self.min_pixels, max_pixels=self._budget(max(num_frames, self.temporal_factor)),
        )  # fmt: skip

    def _budget(self, frames: int) -> int:
        if self.total_pixels is None:
            return self.max_pixels
        share = min(self.max_pixels, self.total_pixels * self.temporal_factor // frames)
        return max(share, int(self.min_pixels * 1.05))


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSize:
    """Every picture is stretched to one size (square towers such as SigLIP)."""

    height: int
    width: int

    def target_size(self, num_frames: int, height: int, width: int) -> tuple[int, int]:  # noqa: ARG002 (fixed)
        return self.height, self.width


def resize_frames(
    pixels: torch.Tensor, size: tuple[int, int], *, interpolation: Interpolation, antialias: Antialias = "on"
) -> torch.Tensor:
    """Resample (..., 3, h, w) uint8 to (..., 3, H, W) uint8, bit-equal to transformers' torchvision processors."""
    mode = InterpolationMode(interpolation)
    resized: torch.Tensor = tv.resize(pixels, list(size), interpolation=mode, antialias=antialias == "on")
    return resized


def _fit_budget(
    height: int, width: int, *, factor: int, frames: int, counted_frames: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """Round both sides to `factor`; if the pixels then miss the budget, scale both sides into it.

    The test counts rounded frames while the scale uses the real ones: that is the rule the models were trained with.
    """
    rounded = round(height / factor) * factor, round(width / factor) * factor
    pixels = counted_frames * rounded[0] * rounded[1]
    if pixels > max_pixels:
        shrink = math.sqrt((frames * height * width) / max_pixels)
        return tuple(max(factor, math.floor(side / shrink / factor) * factor) for side in (height, width))  # type: ignore[return-value]
    if pixels < min_pixels:
        grow = math.sqrt(min_pixels / (frames * height * width))
        return tuple(math.ceil(side * grow / factor) * factor for side in (height, width))  # type: ignore[return-value]
    return rounded


def _check_aspect(height: int, width: int) -> None:
    ratio = max(height, width) / min(height, width)
    if ratio > MAX_ASPECT_RATIO:
        raise InvalidMediaOptionError(
            f"the picture is {width}x{height}: its sides differ by a factor of {ratio:.0f}, and at most "
            f"{MAX_ASPECT_RATIO:.0f} can be shown to the model; crop it",
            param="media",
        )


def _check_budget(factor: int, min_pixels: int, max_pixels: int) -> None:
    for name, value in (("factor", factor), ("min_pixels", min_pixels), ("max_pixels", max_pixels)):
        if value < 1:
            raise InvalidMediaOptionError(f"{name} must be at least 1, got {value}", param=name)
    if min_pixels > max_pixels:
        raise InvalidMediaOptionError(
            f"min_pixels ({min_pixels}) must not be above max_pixels ({max_pixels})", param="min_pixels"
        )
