"""The decoded clip: sampled, upright, resized RGB frames with their true times.

Knows nothing of how they were decoded, nor of patches or normalisation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

MediaKind = Literal["video", "image"]
BackendName = Literal["pyav", "decord", "torchcodec"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VideoFrames:
    """One clip or image as it will be looked at; an image is the one-frame case.

    pixels: (F, 3, H, W) uint8 RGB, upright, resized.
    times_s: F times counted from the first picture of the clip that can be shown. Where the rate varies, this is
        the time that was asked for, at which the picture is on screen.
    frame_indices: F places in presentation order among the frames that can be shown.
    duration_s: from the first picture shown to the end of the last, from the packets of the video stream alone.
    source_fps: average rate of the source, from its time stamps; None for an image.
    source_size: (height, width) as shown: after rotation and with square pixels, before the resize.
    num_frames: frames in the clip that can be shown.
    num_broken: frames found damaged on the way and left out.
    backend: which decoder gave the frames of a clip; "" for pictures. backend_reason: why it is not the one that was
        asked for, in a few fixed words fit to count by; "" where it is.
    """

    kind: MediaKind
    pixels: npt.NDArray[np.uint8]
    times_s: tuple[float, ...]
    frame_indices: tuple[int, ...]
    duration_s: float
    source_fps: float | None
    source_size: tuple[int, int]
    codec: str
    container: str
    num_frames: int
    num_broken: int = 0
    backend: str = ""
    backend_reason: str = ""

    def __post_init__(self) -> None:
        if self.pixels.ndim != 4 or self.pixels.shape[1] != 3 or self.pixels.dtype != np.uint8:
            raise ValueError(f"pixels must be (F, 3, H, W) uint8, got {self.pixels.shape} {self.pixels.dtype}")
        if not len(self.pixels) == len(self.times_s) == len(self.frame_indices) > 0:
            raise ValueError(
                f"{len(self.pixels)} frames, {len(self.times_s)} times and {len(self.frame_indices)} indices disagree"
            )

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the resized frames."""
        return self.pixels.shape[2], self.pixels.shape[3]

    @property
    def sampled_fps(self) -> float | None:
        """Average rate of the frames that were kept; None when there is only one."""
        span = self.times_s[-1] - self.times_s[0]
        return (len(self.times_s) - 1) / span if span > 0 else None
