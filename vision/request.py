"""The nouns that pass between the parent and the decoding process: what to decode, how, and what came out.

Knows nothing of how either side does its work.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from vision.errors import InvalidMediaOptionError
from vision.frames import BackendName, MediaKind
from vision.limits import DecodeLimits
from vision.resize import Interpolation, ResizePolicy
from vision.sampling import SamplingPolicy
from vision.tiling import Tiling


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaBytes:
    """A whole media file in memory."""

    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaFile:
    """A regular file that stays as it is until the item is decoded. The path is the caller's own, never a user's."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedFrames:
    """Pictures (JPEG, PNG, WebP) that together are one clip, taken `fps` times a second.

    Pictures of other sizes than the first are stretched to the size chosen for the first.
    """

    frames: tuple[bytes, ...] = field(repr=False)
    fps: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.fps, bool) or not 0 < self.fps <= 1000:
            raise InvalidMediaOptionError(
                f"fps of a frame list must be above 0 and at most 1000, got {self.fps}", param="fps"
            )


EVERY_FRAME = SamplingPolicy()

MediaSource = MediaBytes | MediaFile | EncodedFrames


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRequest:
    """How one item is to be decoded. Interpolation names are torchvision's. `limits` None takes the pool's own.

    tiling: turns each picture into pictures of the one size that `resize` states; None: `resize` alone does.
    """

    kind: MediaKind
    resize: ResizePolicy
    sampling: SamplingPolicy = EVERY_FRAME
    interpolation: Interpolation = "bicubic"
    tiling: Tiling | None = None
    limits: DecodeLimits | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A request as the child gets it. `picture_sizes` cuts the input into a frame list; None: it is one file.

    backend: the pool's decoder of clips; pictures are always Pillow's.
    """

    request: DecodeRequest
    limits: DecodeLimits
    backend: BackendName = "pyav"
    picture_sizes: tuple[int, ...] | None = None
    list_fps: float = 1.0


# A child's first byte to its parent; a pidfd of the child rides with it.
HELLO = b"!"


class FramesReport(msgspec.Struct, frozen=True, kw_only=True, tag="frames"):
    """What was decoded, without the pixels. Fields as in VideoFrames; (height, width) is the resized size."""

    height: int
    width: int
    times_s: tuple[float, ...]
    frame_indices: tuple[int, ...]
    duration_s: float
    source_fps: float | None
    source_size: tuple[int, int]
    codec: str
    container: str
    num_frames: int
    num_broken: int
    backend: str = ""
    backend_reason: str = ""


class FailureReport(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """Why nothing was decoded: the name of a class of the error tree, its message and its param."""

    error: str
    message: str
    param: str | None = None


Report = FramesReport | FailureReport


class FrameSink(Protocol):
    """Where decoded frames go."""

    def begin(self, num_frames: int, height: int, width: int) -> None:
        """Expect this many frames of this size; whatever was put before is void."""
        ...

    def put(self, position: int, pixels: npt.NDArray[np.uint8]) -> None:
        """Take the frame at `position`: (3, height, width) uint8. A frame may be put at several positions."""
        ...
