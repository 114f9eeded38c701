"""Decoding in the test's own process: a sink that keeps frames, and one call round it."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt

from tests.vision.fakes import SameSize
from vision.decode import decode_file
from vision.frames import MediaKind
from vision.limits import DecodeLimits
from vision.request import DecodeRequest, FramesReport
from vision.resize import ResizePolicy
from vision.sampling import SamplingPolicy


class KeptFrames:
    """Keeps what is put, and refuses what does not fit."""

    def __init__(self) -> None:
        self.pixels: npt.NDArray[np.uint8] = np.zeros((0, 3, 0, 0), np.uint8)

    def begin(self, num_frames: int, height: int, width: int) -> None:
        self.pixels = np.zeros((num_frames, 3, height, width), np.uint8)

    def put(self, position: int, pixels: npt.NDArray[np.uint8]) -> None:
        assert pixels.shape == self.pixels.shape[1:]
        self.pixels[position] = pixels


def decode(
    data: bytes,
    sampling: SamplingPolicy | None = None,
    *,
    kind: MediaKind = "video",
    resize: ResizePolicy | None = None,
    limits: DecodeLimits | None = None,
) -> tuple[FramesReport, npt.NDArray[np.uint8]]:
    """Decode in this process, by default every frame at its own size: (report, (F, 3, H, W) pixels)."""
    sink = KeptFrames()
    request = DecodeRequest(kind=kind, resize=resize or SameSize(), sampling=sampling or SamplingPolicy())
    report = decode_file(io.BytesIO(data), request, limits=limits or DecodeLimits(), sink=sink)
    return report, sink.pixels
