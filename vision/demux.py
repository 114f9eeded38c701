"""Opening a clip's container and reading its packets, as often as needed and from any place.

Owns the demuxer: what it may open, and which stream is the film. Knows nothing of times, sampling or pixels. Seeking
is believed only when the packet that was asked for is the one that comes; otherwise the file is read from the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import BinaryIO

import av
import numpy as np
from av.container import InputContainer
from av.packet import Packet
from av.stream import Disposition
from av.video.stream import VideoStream

from vision.codecs import CODECS
from vision.containers import Container
from vision.errors import UndecodableError, UnsupportedMediaError
from vision.limits import DecodeLimits
from vision.packets import NO_TIME, PacketTable

# Demuxers that keep an index and land on the packet they are asked for.
INDEXED = frozenset(["mov", "matroska"])
# Reading a packet costs microseconds: a seek pays only over a longer way. What is passed over after it is bounded.
SEEK_ABOVE = 256
MAX_PASSED = 64

# No protocol at all: the bytes given are the only bytes a demuxer may read. And nothing is decoded to learn about the
# streams: the sizes in the headers are checked first.
WHOLE = {"protocol_whitelist": "none", "skip_frame": "all"}
# Of a stream that still arrives, no more is read beforehand than it takes to know its codec.
LIVE = WHOLE | {"analyzeduration": "1", "fpsprobesize": "0"}

_NOT_A_FILM = Disposition.attached_pic | Disposition.timed_thumbnails


class Film:
    """An open container and its film; a fresh decoder each time it is opened."""

    def __init__(
        self, file: BinaryIO, container: Container, limits: DecodeLimits, options: Mapping[str, str] = WHOLE
    ) -> None:
        if hasattr(file, "seek"):  # a stream has only its bytes to come
            file.seek(0)
        self.opened = _open(file, container, options)
        try:
            self.stream = _find_stream(self.opened, container)
            context = self.stream.codec_context
            if context.name not in CODECS:
                raise UnsupportedMediaError(
                    f"the video codec {context.name} is not taken; convert the clip to H.264 or VP9"
                )
            limits.check_picture(context.height, context.width)
            context.thread_count = 1
            context.options = {"max_pixels": str(limits.max_pixels_per_frame)}
        except BaseException:
            self.opened.close()
            raise

    def read_packets(self) -> Iterator[Packet[VideoStream]]:
        """Packets of the film from wherever the demuxer stands; a file that breaks off gives those before the break."""
        try:
            for packet in self.opened.demux(self.stream):
                if packet.size:
                    yield packet
        except MemoryError:
            raise
        except av.error.FFmpegError:
            return


@contextmanager
def open_film(file: BinaryIO, container: Container, limits: DecodeLimits) -> Iterator[Film]:
    """Raises UndecodableError (nothing to read, no video stream), UnsupportedMediaError (codec) and
    MediaTooLargeError (size of a picture)."""
    film = Film(file, container, limits)
    with film.opened:
        yield film


class PacketReader:
    """Gives stretches of a film's packets by their places in the table; stretches are asked for in rising order."""

    def __init__(self, file: BinaryIO, container: Container, limits: DecodeLimits, table: PacketTable) -> None:
        self._file, self._container, self._limits, self._table = file, container, limits, table
        self._can_seek = container.reader in INDEXED and _rises(table)
        self._place = 0
        self._rewind()

    def __enter__(self) -> PacketReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.film.opened.close()

    def read(self, start: int, stop: int) -> Iterator[Packet[VideoStream]]:
        """Packets [start, stop), fewer when the file ends before."""
        pending = self._reach(start)
        while self._place < stop:
            packet = pending if pending is not None else next(self._packets, None)
            if packet is None:
                return
            pending = None
            self._place += 1
            yield packet

    def _reach(self, start: int) -> Packet[VideoStream] | None:
        """Stand before packet `start`; the packet itself when it had to be read to know where we are."""
        if self._can_seek and start - self._place > SEEK_ABOVE:
            found = self._seek(start)
            if found is not None:
                self._place = start
                return found
            self._can_seek = False
            self.film.opened.close()
            self._rewind()
        while self._place < start and next(self._packets, None) is not None:
            self._place += 1
        return None

    def _seek(self, start: int) -> Packet[VideoStream] | None:
        """Indexed demuxers take the time a picture is shown at. Asked for the time it is decoded at, which is earlier
        where B-frames travel, they land a whole group before it."""
        wanted = self._table.row(start)
        try:
            self.film.opened.seek(wanted[0], stream=self.film.stream, backward=True, any_frame=False)
        except av.error.FFmpegError:
            return None
        self._packets = self.film.read_packets()
        for _, packet in zip(range(MAX_PASSED), self._packets, strict=False):
            if _is_same(identify(packet), wanted):
                return packet
        return None

    def _rewind(self) -> None:
        self.film = Film(self._file, self._container, self._limits)
        self._packets = self.film.read_packets()
        self._place = 0


def identify(packet: Packet[VideoStream]) -> tuple[int, int, int, bool]:
    """What `PacketTable.row` gives for the packet."""
    decode_tick = packet.dts if packet.dts is not None else NO_TIME
    return packet.pts if packet.pts is not None else decode_tick, decode_tick, packet.size, packet.is_keyframe


def _is_same(found: tuple[int, int, int, bool], wanted: tuple[int, int, int, bool]) -> bool:
    """Where decoding times are not in the file (Matroska), the first packet after a jump has none."""
    return found == wanted or (found[1] == NO_TIME and (found[0], *found[2:]) == (wanted[0], *wanted[2:]))


def _rises(table: PacketTable) -> bool:
    ticks = table.decode_ticks[table.decode_ticks != NO_TIME]
    return bool((np.diff(ticks) > 0).all())


def _open(file: BinaryIO, container: Container, options: Mapping[str, str]) -> InputContainer:
    try:
        return av.open(
            file,
            "r",
            format=container.reader,
            options=dict(options),
            metadata_errors="replace",
        )
    except MemoryError:
        raise
    except (av.error.FFmpegError, ValueError, IndexError) as error:
        raise UndecodableError(
            f"the {container.name} file is damaged or incomplete; nothing in it can be read"
        ) from error


def _find_stream(opened: InputContainer, container: Container) -> VideoStream:
    """The first real video track; a cover picture is not one."""
    films = [stream for stream in opened.streams.video if not stream.disposition & _NOT_A_FILM]
    if not films:
        raise UndecodableError(f"the {container.name} file has no video stream")
    for stream in films:
        if stream.codec_context is not None:
            return stream
    raise UnsupportedMediaError("the codec of the video stream is not known; convert the clip to H.264 or VP9")
