"""From a decoder's pixel format to 8-bit RGB.

Owns colour matrices, ranges and transparency; knows nothing of timing, rotation or size rules. The frame's own tags
for matrix and range are honoured; an untagged frame is read as limited-range BT.601, FFmpeg's own convention and the
one that models were trained with. A signal of high dynamic range stays as it is: vision/hdr.py maps it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter

# What shows through transparent pixels; part of the picture, so a change here changes every cache key made of pixels.
BACKGROUND = 255

Pixels = npt.NDArray[np.uint8]

# Kept: setting a conversion up costs as much as converting a picture. It is set up anew for a picture of another kind.
_REFORMATTER = VideoReformatter()


def to_rgb(frame: VideoFrame) -> Pixels:
    """(h, w, 3) uint8; transparent pixels show a white background, never the colour hidden under them."""
    if has_alpha(frame):
        return blend_on_background(_convert(frame, "rgba"))
    return _convert(frame, "rgb24")


def blend_on_background(rgba: Pixels) -> Pixels:
    """(h, w, 4) -> (h, w, 3) over BACKGROUND, rounded to nearest."""
    alpha = rgba[..., 3:].astype(np.uint16)
    blended = rgba[..., :3] * alpha + BACKGROUND * (255 - alpha) + 127
    return (blended // 255).astype(np.uint8)


def has_alpha(frame: VideoFrame) -> bool:
    return frame.format.name == "pal8" or any(component.is_alpha for component in frame.format.components)


def _convert(frame: VideoFrame, pixel_format: str) -> Pixels:
    # threads=1: swscale would otherwise start a thread for each processor.
    converted = _REFORMATTER.reformat(frame, format=pixel_format, threads=1)
    return np.asarray(converted.to_ndarray(), dtype=np.uint8)
