"""What one media item may cost: bytes, pixels, frames, seconds, memory.

Knows nothing of where the numbers come from (settings are the caller's) nor of how they are enforced.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from vision.errors import MediaTooLargeError, UndecodableError


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLimits:
    """Bounds on one item. `max_frames` bounds sampled frames (it lowers the rate); the others refuse the item.

    max_pixels_per_frame: coded width x height of one picture.
    max_duration_s: of the whole clip, in the clip's own time.
    max_packets: coded pictures in the clip; bounds the walk over a file of millions of tiny frames.
    max_frame_list: pictures in a list of encoded frames.
    decode_timeout_s: wall clock from the start of the child to its answer.
    max_child_memory_bytes: address space the child may add to what it starts with, and the bytes it may return.
    """

    max_bytes: int = 512 << 20
    max_pixels_per_frame: int = 8192 * 4352
    max_frames: int = 768
    max_duration_s: float = 4 * 3600.0
    max_packets: int = 2_000_000
    max_frame_list: int = 768
    decode_timeout_s: float = 30.0
    max_child_memory_bytes: int = 4 << 30

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ValueError(f"{field.name} must be above 0, got {getattr(self, field.name)}")

    def check_picture(self, height: int, width: int) -> None:
        """Refuse a picture with too many pixels; 0x0 (not known yet) passes."""
        if height * width > self.max_pixels_per_frame:
            raise MediaTooLargeError(
                f"a picture of {width}x{height} is above the limit of {self.max_pixels_per_frame} pixels; scale it down"
            )

    def check_frame_list(self, count: int) -> None:
        """Refuse an empty list and one that is too long."""
        if count == 0:
            raise UndecodableError("the frame list is empty")
        if count > self.max_frame_list:
            raise MediaTooLargeError(f"{count} pictures in a frame list are above the limit of {self.max_frame_list}")

    def check_bytes(self, size: int) -> None:
        if size > self.max_bytes:
            raise MediaTooLargeError(f"the item has {size} bytes and the limit is {self.max_bytes}")

    def check_duration(self, duration_s: float) -> None:
        if duration_s > self.max_duration_s:
            raise MediaTooLargeError(
                f"the clip is {duration_s:.0f} s long and the limit is {self.max_duration_s:.0f} s; cut it"
            )
