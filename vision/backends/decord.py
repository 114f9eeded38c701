"""Decoding with decord (the maintained fork, `decord2`), for what it decodes truly.

It gives no time with a picture, so pictures are asked for by their place in presentation order, and only where its own
list of times is the packets' one. What it is not asked for, and why:

- MPEG streams and AVI: other pictures than asked for, where B-frames travel in them (seen).
- Open groups of pictures: the picture after the wanted one, and the last one twice (seen).
- Turned clips: an error (seen). High dynamic range and transparency: it maps neither.
- Clips with a second video track: it takes the largest.

HEVC and MPEG-4 with B-frames and damaged clips make it fail, and then PyAV decodes them. Its colours differ by its own
interpolation of the colour planes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import decord
import numpy as np

from vision.backends.foreign import check_clip, media_source
from vision.backends.protocol import BackendRefusalError, Picture
from vision.packets import Ticks
from vision.probe import Clip

# It keeps times as single floats.
TIME_TOLERANCE = 1e-6
TIME_TOLERANCE_S = 1e-3


def make_backend() -> DecordBackend:
    decord.logging.set_level(decord.logging.QUIET)
    return DecordBackend()


class DecordBackend:
    """One reader for each clip, one thread."""

    def find_pictures(self, clip: Clip, wanted: Sequence[int]) -> Iterator[tuple[int, Picture]]:
        check_clip(clip, readers=("mov", "matroska"))
        if clip.groups.has_leading():
            raise BackendRefusalError("open groups of pictures")
        try:
            reader = decord.VideoReader(media_source(clip.file), num_threads=1)
            _check_times(clip, np.array([reader.get_frame_timestamp(k)[0] for k in _ends(len(reader))]), len(reader))
            for tick in sorted(set(wanted)):
                pixels = reader[int(np.searchsorted(clip.ticks, tick))].asnumpy()
                yield tick, Picture(pixels=pixels, orientation="as_stored")
        except decord.DECORDError as error:
            raise BackendRefusalError("it failed") from error


def _ends(count: int) -> list[int]:
    return sorted({0, count // 2, max(count - 1, 0)})


def _check_times(clip: Clip, times_s: Ticks, count: int) -> None:
    """The same number of pictures, and the same times at both ends and in the middle."""
    if count != len(clip.ticks):
        raise BackendRefusalError("it counts other pictures")
    ours = (clip.ticks[_ends(count)] - clip.ticks[0]) * float(clip.time_base)
    if (np.abs((times_s - times_s[0]) - ours) > TIME_TOLERANCE_S + TIME_TOLERANCE * ours).any():
        raise BackendRefusalError("it has other times")
