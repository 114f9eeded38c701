"""Decoding one clip: choose times, decode once, resize, hand each frame to a sink.

Runs inside the decoding process (and in tests without one). Knows nothing of processes, sockets or where frames go.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import BinaryIO

import numpy as np

from vision.backends.protocol import Backend, BackendRefusalError, Picture, load_backend
from vision.backends.pyav import PyavBackend, UntrueKeyError
from vision.color import Pixels
from vision.containers import HEAD_BYTES, sniff_container
from vision.errors import UndecodableError
from vision.frames import BackendName
from vision.hdr import is_hdr, to_standard_range
from vision.images import decode_image, shape_picture
from vision.limits import DecodeLimits
from vision.packets import Ticks, one_group
from vision.probe import Clip, read_clip
from vision.request import DecodeRequest, FrameSink, FramesReport
from vision.rotation import QUARTER_TURNS
from vision.sampling import FrameChoice, Times, choose_frames, estimate_rate, nominal_interval

# One pass when every chosen picture decodes. Each further one chooses again without the groups' damaged pictures; the
# last follows a look at the whole clip.
MAX_PASSES = 4


def decode_file(
    file: BinaryIO, request: DecodeRequest, *, limits: DecodeLimits, sink: FrameSink, backend: BackendName = "pyav"
) -> FramesReport:
    """Decode a whole media file as `request.kind`. Raises any error of the media tree but those of the cage.

    What another backend refuses is decoded by PyAV, and the report says so and why.
    """
    head = file.read(HEAD_BYTES) or b""
    file.seek(0)
    container = sniff_container(head, request.kind)
    if request.kind == "image":
        return decode_image(file.read() or b"", container, request, limits=limits, sink=sink)
    clip = read_clip(file, container, limits)
    if backend == "pyav":
        return decode_clip(clip, request, sink=sink)
    try:
        return _decode_with(backend, clip, request, sink)
    except BackendRefusalError as refusal:
        return decode_clip(clip, request, sink=sink, reason=f"{backend}: {refusal.reason}")


def decode_clip(clip: Clip, request: DecodeRequest, *, sink: FrameSink, reason: str = "") -> FramesReport:
    """Sample, decode and resize; pictures that turn out damaged are left out and the rest re-sampled."""
    backend, damaged, ticks = PyavBackend(), 0, clip.ticks
    for attempt in range(MAX_PASSES):
        canvas = _Canvas(clip=clip, request=request, sink=sink, choice=_choose(clip, ticks, request))
        try:
            missing = canvas.draw(backend.find_pictures(clip, canvas.choice.wanted))
        except UntrueKeyError:
            clip, backend = replace(clip, groups=one_group(clip.groups.table)), PyavBackend()
            continue
        if not missing:
            return canvas.report(num_broken=damaged or backend.broken, backend="pyav", reason=reason)
        suspects = missing if attempt < MAX_PASSES - 2 else clip.ticks.tolist()
        gone = np.isin(ticks, list(backend.find_damage(clip, suspects)))
        if gone.all():
            break
        damaged += int(gone.sum())
        ticks = ticks[~gone]
        if not gone.any():  # what is missing decodes with more of the clip round it: its groups are not what they seem
            clip, backend = replace(clip, groups=one_group(clip.groups.table)), PyavBackend()
    raise UndecodableError(
        f"no picture of the {clip.container.name} file could be decoded ({clip.codec}); it may be damaged"
    )


def _decode_with(name: BackendName, clip: Clip, request: DecodeRequest, sink: FrameSink) -> FramesReport:
    """One pass of another backend. Raises BackendRefusalError."""
    backend: Backend = load_backend(name)
    canvas = _Canvas(clip=clip, request=request, sink=sink, choice=_choose(clip, clip.ticks, request))
    if canvas.draw(backend.find_pictures(clip, canvas.choice.wanted)):
        raise BackendRefusalError("it leaves pictures out")
    return canvas.report(num_broken=0, backend=name, reason="")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Choice:
    """The pictures that can be shown (their end, their rate), which of them are looked at, and those ones' ticks."""

    frames: FrameChoice
    wanted: tuple[int, ...]
    end_s: float
    source_fps: float | None
    num_frames: int


def _choose(clip: Clip, ticks: Ticks, request: DecodeRequest) -> _Choice:
    pts_s = (ticks - ticks[0]) * clip.time_base.numerator / clip.time_base.denominator
    source_fps = estimate_rate(pts_s, hint=clip.header_fps)
    end_s = float(pts_s[-1]) + _last_shown_s(clip, int(ticks[-1]), pts_s, source_fps)
    frames = choose_frames(pts_s, end_s, request.sampling, source_fps=source_fps)
    wanted = tuple(ticks[list(frames.indices)].tolist())
    return _Choice(frames=frames, wanted=wanted, end_s=end_s, source_fps=source_fps, num_frames=len(ticks))


def _last_shown_s(clip: Clip, tick: int, pts_s: Times, source_fps: float | None) -> float:
    duration = clip.duration_of(tick)
    if duration > 0:
        return float(duration * clip.time_base)
    if len(pts_s) > 1:
        return nominal_interval(pts_s)
    return 1 / source_fps if source_fps else 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class _Canvas:
    """Turns one pass of decoded pictures into frames of one size in the sink. The first sets the size."""

    clip: Clip
    request: DecodeRequest
    sink: FrameSink
    choice: _Choice
    target: tuple[int, int] = (0, 0)
    source_size: tuple[int, int] = (0, 0)

    def draw(self, pictures: Iterable[tuple[int, Picture]]) -> Sequence[int]:
        """Put each picture wherever its tick was chosen; the chosen ticks that got none."""
        positions: defaultdict[int, list[int]] = defaultdict(list)
        for position, tick in enumerate(self.choice.wanted):
            positions[tick].append(position)
        for tick, picture in pictures:
            frame = self._shape(picture)
            for position in positions.pop(tick):
                self.sink.put(position, frame)
        return tuple(positions)

    def report(self, *, num_broken: int, backend: BackendName, reason: str) -> FramesReport:
        height, width = self.target
        return FramesReport(
            height=height, width=width, times_s=self.choice.frames.times_s, frame_indices=self.choice.frames.indices,
            duration_s=self.choice.end_s, source_fps=self.choice.source_fps, source_size=self.source_size,
            codec=self.clip.codec, container=self.clip.container.name, num_frames=self.choice.num_frames,
            num_broken=num_broken, backend=backend, backend_reason=reason,
        )  # fmt: skip

    def _shape(self, picture: Picture) -> Pixels:
        if self.target == (0, 0):
            self.source_size = shown_size(picture, self.clip.pixel_aspect)
            num_frames = len(self.choice.wanted)
            self.target = self.request.resize.target_size(num_frames, *self.source_size)
            self.sink.begin(num_frames, *self.target)
        frame: Pixels = shape_picture(picture.pixels, self.source_size, self.target, self.request)[0]
        return to_standard_range(frame, picture.transfer) if is_hdr(picture.transfer) else frame


def shown_size(picture: Picture, pixel_aspect: Fraction) -> tuple[int, int]:
    """(height, width) with square pixels: the stored width, wherever it points now, is stretched by the aspect."""
    height, width = picture.pixels.shape[:2]
    if picture.orientation in QUARTER_TURNS:
        return max(1, round(height * pixel_aspect)), width
    return height, max(1, round(width * pixel_aspect))
