"""Decoding one clip: choose times, decode once, turn upright, resize, hand each frame to a sink.

Runs inside the decoding process (and in tests without one). Knows nothing of processes, sockets or where frames go.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import BinaryIO

import av
from av.video.frame import VideoFrame

from vision.color import Pixels, to_rgb
from vision.containers import HEAD_BYTES, sniff_container
from vision.errors import UndecodableError
from vision.images import decode_image, shape_picture
from vision.limits import DecodeLimits
from vision.probe import Clip, open_clip
from vision.request import DecodeRequest, FrameSink, FramesReport
from vision.rotation import QUARTER_TURNS, Orientation, read_orientation, turn_upright
from vision.sampling import choose_frames, estimate_rate, nominal_interval

# One pass when every promised picture decodes; a second over those that did; a third only if decoding is not stable.
MAX_PASSES = 3


def decode_file(file: BinaryIO, request: DecodeRequest, *, limits: DecodeLimits, sink: FrameSink) -> FramesReport:
    """Decode a whole media file as `request.kind`. Raises any error of the media tree but those of the cage."""
    head = file.read(HEAD_BYTES) or b""
    file.seek(0)
    container = sniff_container(head, request.kind)
    if request.kind == "image":
        return decode_image(file.read() or b"", container, request, limits=limits, sink=sink)
    with open_clip(file, container, limits) as clip:
        return decode_clip(clip, request, limits=limits, sink=sink)


def decode_clip(clip: Clip, request: DecodeRequest, *, limits: DecodeLimits, sink: FrameSink) -> FramesReport:
    """Sample, decode and resize an open clip; pictures that turn out damaged are left out and the rest re-sampled."""
    timeline = _make_timeline(clip, clip.ticks)
    for _ in range(MAX_PASSES):
        choice = choose_frames(timeline.pts_s, timeline.end_s, request.sampling, source_fps=timeline.source_fps)
        wanted = [timeline.ticks[index] for index in choice.indices]
        walk = _Walk(clip=clip, request=request, limits=limits, sink=sink)
        walk.decode(wanted)
        if not walk.missing:
            height, width = walk.target
            return FramesReport(
                height=height, width=width, times_s=choice.times_s, frame_indices=choice.indices,
                duration_s=timeline.end_s, source_fps=timeline.source_fps, source_size=walk.source_size,
                codec=clip.codec, container=clip.container, num_frames=len(timeline.ticks),
                num_broken=len(clip.ticks) - len(timeline.ticks) if timeline.ticks is not clip.ticks else walk.broken,
            )  # fmt: skip
        if not walk.seen:
            break
        timeline = _make_timeline(clip, sorted(walk.seen))
    raise UndecodableError(
        f"no picture of the {clip.container} file could be decoded ({clip.codec}); it may be damaged"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timeline:
    """The pictures that can be shown: ticks, their times from the first one, the end of the last, the rate."""

    ticks: Sequence[int]
    pts_s: Sequence[float]
    end_s: float
    source_fps: float | None


def _make_timeline(clip: Clip, ticks: Sequence[int]) -> _Timeline:
    pts_s = [float((tick - ticks[0]) * clip.time_base) for tick in ticks]
    last = clip.durations.get(ticks[-1], 0)
    source_fps = estimate_rate(pts_s, hint=clip.header_fps)
    if last > 0:
        shown_s = float(last * clip.time_base)
    elif len(pts_s) > 1:
        shown_s = nominal_interval(pts_s)
    else:
        shown_s = 1 / source_fps if source_fps else 0.0
    return _Timeline(ticks=ticks, pts_s=pts_s, end_s=pts_s[-1] + shown_s, source_fps=source_fps)


@dataclass(slots=True, kw_only=True)
class _Walk:
    """One pass of the decoder over the clip, from the start until the last wanted picture was found."""

    clip: Clip
    request: DecodeRequest
    limits: DecodeLimits
    sink: FrameSink
    seen: set[int] = field(default_factory=set)
    missing: dict[int, list[int]] = field(default_factory=dict)
    broken: int = 0
    target: tuple[int, int] = (0, 0)
    source_size: tuple[int, int] = (0, 0)

    def decode(self, wanted: Sequence[int]) -> None:
        """Put the pictures of the wanted ticks into the sink; a tick wanted twice is put twice."""
        positions: defaultdict[int, list[int]] = defaultdict(list)
        for position, tick in enumerate(wanted):
            positions[tick].append(position)
        self.missing = dict(positions)
        for tick, frame in self._frames():
            if tick in self.seen:
                continue
            self.seen.add(tick)
            if tick in self.missing:
                self._keep(frame, self.missing.pop(tick), len(wanted))
            if not self.missing:
                return

    def _frames(self) -> Iterator[tuple[int, VideoFrame]]:
        """Sound frames with their ticks. Frames the decoder had to patch up are not sound."""
        self.clip.stream.codec_context.flush_buffers()
        for packet in (*self.clip.packets, None):
            try:
                frames = self.clip.stream.decode(packet)
            except MemoryError:
                raise
            except av.error.FFmpegError:
                self.broken += packet is not None
                continue
            for frame in frames:
                tick = frame.pts if frame.pts is not None else frame.dts
                if frame.is_corrupt or tick is None:
                    self.broken += 1
                else:
                    yield tick, frame

    def _keep(self, frame: VideoFrame, positions: Sequence[int], num_frames: int) -> None:
        self.limits.check_picture(frame.height, frame.width)
        orientation = read_orientation(frame)
        upright = turn_upright(to_rgb(frame), orientation)
        if self.target == (0, 0):
            self.source_size = _shown_size(upright, self.clip.pixel_aspect, orientation)
            self.target = self.request.resize.target_size(num_frames, *self.source_size)
            self.sink.begin(num_frames, *self.target)
        picture = shape_picture(upright, self.source_size, self.target, self.request)[0]
        for position in positions:
            self.sink.put(position, picture)


def _shown_size(upright: Pixels, pixel_aspect: Fraction, orientation: Orientation) -> tuple[int, int]:
    """(height, width) with square pixels: the stored width, wherever it points now, is stretched by the aspect."""
    height, width = upright.shape[:2]
    if orientation in QUARTER_TURNS:
        return max(1, round(height * pixel_aspect)), width
    return height, max(1, round(width * pixel_aspect))
