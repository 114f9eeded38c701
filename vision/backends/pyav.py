"""Decoding with PyAV: only the stretches of packets that wanted pictures depend on, in one thread.

Interlaced pictures are shown as they are stored, both fields woven into one picture: a frame is a frame, as in the
processors that models were trained with. Knows nothing of sampling or sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import av
from av.video.frame import PictureType, VideoFrame

from vision.backends.protocol import Picture
from vision.codecs import PASSING_OVER
from vision.color import to_rgb
from vision.demux import PacketReader
from vision.packets import Span
from vision.probe import Clip
from vision.rotation import read_orientation, turn_upright


class UntrueKeyError(Exception):
    """The file calls a picture a key that is none: decoding can only begin at the clip's start."""


def make_backend() -> PyavBackend:
    return PyavBackend()


@dataclass(slots=True)
class PyavBackend:
    """`broken` counts packets and frames that were met and left out as damaged."""

    broken: int = 0

    def find_pictures(self, clip: Clip, wanted: Sequence[int]) -> Iterator[tuple[int, Picture]]:
        """Raises UntrueKeyError: decode again with all packets in one group."""
        left, needed = set(wanted), None
        if clip.codec in PASSING_OVER and clip.groups.tail == 0:
            needed = frozenset(clip.groups.places_of(wanted).tolist())
        for tick, frame in self._decode(clip, clip.groups.plan(wanted), needed):
            if tick in left:
                left.remove(tick)
                clip.limits.check_picture(frame.height, frame.width)
                orientation = read_orientation(frame)
                pixels = turn_upright(to_rgb(frame), orientation)
                yield tick, Picture(pixels=pixels, orientation=orientation, transfer=int(frame.color_trc))
            if not left:
                return

    def first_frame(self, clip: Clip) -> VideoFrame | None:
        """The first sound frame as the decoder gives it; None when the first group has none."""
        spans = clip.groups.plan([int(clip.ticks[0])])
        return next((frame for _, frame in self._decode(clip, spans)), None)

    def find_damage(self, clip: Clip, missing: Sequence[int]) -> frozenset[int]:
        """Ticks without a sound picture in the groups of the missing ones, those included."""
        spans, promised = clip.groups.survey(missing)
        counted = self.broken
        sound = {tick for tick, _ in self._decode(clip, spans)}
        self.broken = counted
        return promised - sound

    def _decode(
        self, clip: Clip, spans: Sequence[Span], needed: frozenset[int] | None = None
    ) -> Iterator[tuple[int, VideoFrame]]:
        """Sound frames with their ticks. Frames the decoder had to patch up are not sound.

        needed: places of packets; the others are passed over where no picture leans on them. None: all are decoded.
        """
        with PacketReader(clip.file, clip.container, clip.limits, clip.groups.table) as reader:
            shown = 0
            for span in spans:
                is_first = span.start > 0
                for frame in self._decode_span(reader, span, needed):
                    tick = _tick_of(clip, frame, shown)
                    shown += 1
                    if frame.is_corrupt or tick is None:
                        self.broken += 1
                        continue
                    if is_first and not (frame.key_frame or frame.pict_type == PictureType.I):
                        raise UntrueKeyError
                    is_first = False
                    yield tick, frame

    def _decode_span(self, reader: PacketReader, span: Span, needed: frozenset[int] | None) -> Iterator[VideoFrame]:
        """Feed the packets, then empty the decoder: everything that depends on these packets alone comes out."""
        for place, packet in enumerate(chain(reader.read(span.start, span.stop), (None,)), start=span.start):
            stream = reader.film.stream  # another one when a seek went wrong and the file was opened anew
            if needed is not None:
                stream.codec_context.skip_frame = "DEFAULT" if place in needed else "NONREF"
            try:
                frames = stream.decode(packet)
            except MemoryError:
                raise
            except av.error.FFmpegError:
                self.broken += packet is not None
                continue
            yield from frames
        reader.film.stream.codec_context.flush_buffers()


def _tick_of(clip: Clip, frame: VideoFrame, place: int) -> int | None:
    if clip.is_ordinal:
        return int(clip.ticks[place]) if place < len(clip.ticks) else None
    return frame.pts if frame.pts is not None else frame.dts
