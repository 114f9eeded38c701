"""What the engine makes of a picture or clip, without a process: encoded, decoded and cut as a family asks."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from runner.items import MediaItem
from runner.requests import VideoOptions
from tests.items import item_of
from tests.oracle import Clip, lossless_file, png_file
from tests.vision.sinks import KeptFrames
from vision.decode import decode_file
from vision.frames import VideoFrames
from vision.limits import DecodeLimits


def look_at(family: Any, part: np.ndarray | Clip, *, siblings: int = 1, **options: Any) -> MediaItem:
    """A picture (H, W, 3) or a Clip as an item whose cells are all kept. siblings: items of its kind in the request."""
    kind, data = ("image", png_file(part)) if isinstance(part, np.ndarray) else ("video", lossless_file(part))
    request = family.decode_request(kind, VideoOptions(**options), siblings)
    sink = KeptFrames()
    report = decode_file(io.BytesIO(data), request, limits=DecodeLimits(), sink=sink)
    frames = VideoFrames(
        kind=kind, pixels=sink.pixels, times_s=report.times_s, frame_indices=report.frame_indices,
        duration_s=report.duration_s, source_fps=report.source_fps, source_size=report.source_size,
        codec=report.codec, container=report.container, num_frames=report.num_frames,
    )  # fmt: skip
    return item_of(frames, family.patch_grid(frames))
