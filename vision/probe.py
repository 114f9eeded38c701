"""Reading all coded pictures of a clip once, without decoding any and without keeping their data.

Owns the true presentation times and what can be known of the film beforehand. Knows nothing of sampling, pixels or how
the bytes got here. Counts, durations and rates in headers are not believed.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from fractions import Fraction
from typing import BinaryIO

import numpy as np
from av.video.stream import VideoStream

from vision.codecs import FIELD_CODECS, RANDOM_ACCESS, REORDERING, is_hidden
from vision.containers import Container
from vision.demux import Film, identify, open_film
from vision.errors import MediaTooLargeError, UndecodableError
from vision.limits import DecodeLimits
from vision.packets import Groups, PacketTable, Ticks, find_groups, one_group

_PROGRESSIVE = (0, 1)  # FFmpeg's "not known" and "progressive"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clip:
    """A film whose packets have been read; `file` must stay open while it is decoded.

    ticks: rising presentation times of the pictures the packets promise, in units of `time_base`.
    is_ordinal: the times in the file are in decoding order, though pictures are shown in another: the k-th picture
        that is shown takes the k-th time (H.264 in AVI).
    header_fps: the rate the header claims, to be used only where it agrees with the ticks.
    pixel_aspect: width of a pixel by its height.
    stream_index, num_films: which stream the film is, and how many video tracks there are.
    """

    file: BinaryIO
    container: Container
    limits: DecodeLimits
    groups: Groups
    ticks: Ticks
    is_ordinal: bool
    time_base: Fraction
    header_fps: float | None
    pixel_aspect: Fraction
    codec: str
    stream_index: int
    num_films: int

    def duration_of(self, tick: int) -> int:
        """How long the picture is shown by its packet, 0 where the file does not say."""
        table = self.groups.table
        return int(table.durations[np.flatnonzero(table.is_shown & (table.ticks == tick))[-1]])


def read_clip(file: BinaryIO, container: Container, limits: DecodeLimits) -> Clip:
    """Open, check against the limits, and read every packet of the film.

    Raises UndecodableError (no video stream, no pictures, damaged), UnsupportedMediaError (codec) and
    MediaTooLargeError (size of a picture, number of pictures, duration).
    """
    with open_film(file, container, limits) as film:
        stream, context = film.stream, film.stream.codec_context
        table = _read_table(film, limits)
        ticks = table.shown_ticks()
        if not len(ticks):
            raise UndecodableError(f"the {container.name} file has a video stream without any pictures in it")
        time_base = stream.time_base or Fraction(1, 90_000)
        limits.check_duration(float(int(ticks[-1] - ticks[0]) * time_base))
        is_ordinal = _is_ordinal(film, container, table)
        rate = stream.average_rate or stream.guessed_rate
        return Clip(
            file=file, container=container, limits=limits, ticks=ticks, is_ordinal=is_ordinal, time_base=time_base,
            groups=one_group(table) if is_ordinal else _group(film, table),
            header_fps=float(rate) if rate else None, pixel_aspect=pixel_aspect(stream), codec=context.name,
            stream_index=stream.index, num_films=len(film.opened.streams.video),
        )  # fmt: skip


def _read_table(film: Film, limits: DecodeLimits) -> PacketTable:
    ticks, decode_ticks, sizes, durations = array("q"), array("q"), array("q"), array("q")
    is_key, is_shown = array("b"), array("b")
    codec = film.stream.codec_context.name
    for count, packet in enumerate(film.read_packets()):
        if count >= limits.max_packets:
            raise MediaTooLargeError(f"the clip has more than the limit of {limits.max_packets} coded pictures")
        tick, decode_tick, size, key = identify(packet)
        ticks.append(tick)
        decode_ticks.append(decode_tick)
        sizes.append(size)
        durations.append(packet.duration or 0)
        is_key.append(key)
        is_shown.append(not packet.is_discard and not is_hidden(packet, codec))
    return PacketTable(
        ticks=np.array(ticks, dtype=np.int64), decode_ticks=np.array(decode_ticks, dtype=np.int64),
        sizes=np.array(sizes, dtype=np.int64), durations=np.array(durations, dtype=np.int64),
        is_key=np.array(is_key, dtype=np.bool_), is_shown=np.array(is_shown, dtype=np.bool_),
    )  # fmt: skip


def _group(film: Film, table: PacketTable) -> Groups:
    context = film.stream.codec_context
    # Pictures without a time of their own take it from the packet after them: no stretch of them stands alone.
    if context.name not in RANDOM_ACCESS or (context.has_b_frames and _lacks_times(table)):
        return one_group(table)
    may_be_fields = context.name in FIELD_CODECS and int(context.field_order) not in _PROGRESSIVE
    return find_groups(table, tail=1 if may_be_fields else 0)


def _lacks_times(table: PacketTable) -> bool:
    """Whether presentation times were made up from decoding times alone: then the two are the same everywhere."""
    return bool((table.ticks == table.decode_ticks).all())


def _is_ordinal(film: Film, container: Container, table: PacketTable) -> bool:
    context = film.stream.codec_context
    return (
        container.reader == "avi"
        and context.name in REORDERING
        and bool(context.has_b_frames)
        and bool((np.diff(table.ticks) > 0).all())
    )


def pixel_aspect(stream: VideoStream) -> Fraction:
    aspect = stream.sample_aspect_ratio or stream.codec_context.sample_aspect_ratio
    return aspect if aspect and Fraction(1, 10) <= aspect <= 10 else Fraction(1)
