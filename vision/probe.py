"""Opening one clip and reading all its coded pictures, without decoding any.

Owns the demuxer: what it may open, which stream is the film, and the true presentation times. Knows nothing of
sampling, pixels or how the bytes got here. Counts, durations and rates in headers are not believed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import BinaryIO

import av
from av.container import InputContainer
from av.packet import Packet
from av.stream import Disposition
from av.video.stream import VideoStream

from vision.containers import Container
from vision.errors import MediaTooLargeError, UndecodableError, UnsupportedMediaError
from vision.limits import DecodeLimits

# Decoders that may meet untrusted bytes: what people have, and nothing that exists only for games and broadcast gear.
CODECS = frozenset(
    [
        "h264",
        "hevc",
        "av1",
        "libdav1d",
        "libaom-av1",
        "vp8",
        "vp9",
        "libvpx",
        "libvpx-vp9",
        "mpeg1video",
        "mpeg2video",
        "mpeg4",
        "msmpeg4",
        "msmpeg4v1",
        "msmpeg4v2",
        "msmpeg4v3",
        "wmv1",
        "wmv2",
        "wmv3",
        "vc1",
        "h261",
        "h263",
        "h263p",
        "flv",
        "flv1",
        "theora",
        "mjpeg",
        "mjpegb",
        "gif",
        "png",
        "qtrle",
        "prores",
        "dnxhd",
        "cfhd",
        "ffv1",
        "ffvhuff",
        "huffyuv",
        "utvideo",
        "rawvideo",
        "cinepak",
        "svq1",
        "svq3",
        "dvvideo",
        "rpza",
        "msvideo1",
        "indeo5",
        "vp6",
        "vp6f",
    ]
)


_NOT_A_FILM = Disposition.attached_pic | Disposition.timed_thumbnails


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clip:
    """An open film with all its packets, in decoding order; usable only inside `open_clip`.

    ticks: rising presentation times of the pictures the packets promise, in units of `time_base`.
    durations: how long each is shown by its packet, in the same units, 0 where the file does not say.
    header_fps: the rate the header claims, to be used only where it agrees with the ticks.
    pixel_aspect: width of a pixel by its height.
    """

    stream: VideoStream
    packets: tuple[Packet[VideoStream], ...]
    ticks: tuple[int, ...]
    durations: dict[int, int]
    time_base: Fraction
    header_fps: float | None
    pixel_aspect: Fraction
    codec: str
    container: str


@contextmanager
def open_clip(file: BinaryIO, container: Container, limits: DecodeLimits) -> Iterator[Clip]:
    """Open, check against the limits, and read every packet of the film.

    Raises UndecodableError (no video stream, no pictures, damaged), UnsupportedMediaError (codec) and
    MediaTooLargeError (size of a picture, number of pictures, duration).
    """
    try:
        opened = av.open(
            file,
            "r",
            format=container.reader,
            # No protocol at all: the bytes given are the only bytes a demuxer may read. And nothing is decoded to learn
            # about the streams: the sizes in the headers are checked first.
            options={"protocol_whitelist": "none", "skip_frame": "all"},
            metadata_errors="replace",
        )
    except MemoryError:
        raise
    except (av.error.FFmpegError, ValueError, IndexError) as error:
        raise UndecodableError(
            f"the {container.name} file is damaged or incomplete; nothing in it can be read"
        ) from error
    with opened:
        yield _read_clip(opened, container, limits)


def _read_clip(opened: InputContainer, container: Container, limits: DecodeLimits) -> Clip:
    stream = _find_film(opened, container)
    context = stream.codec_context
    if context.name not in CODECS:
        raise UnsupportedMediaError(f"the video codec {context.name} is not taken; convert the clip to H.264 or VP9")
    limits.check_picture(context.height, context.width)
    context.thread_count = 1
    context.options = {"max_pixels": str(limits.max_pixels_per_frame)}
    packets = tuple(_read_packets(opened, stream, limits))
    durations = _read_durations(packets, context.name)
    ticks = tuple(sorted(durations))
    if not ticks:
        raise UndecodableError(f"the {container.name} file has a video stream without any pictures in it")
    time_base = stream.time_base or Fraction(1, 90_000)
    limits.check_duration(float((ticks[-1] - ticks[0]) * time_base))
    rate = stream.average_rate or stream.guessed_rate
    return Clip(
        stream=stream, packets=packets, ticks=ticks, durations=durations, time_base=time_base,
        header_fps=float(rate) if rate else None, pixel_aspect=_pixel_aspect(stream),
        codec=context.name, container=container.name,
    )  # fmt: skip


def _find_film(opened: InputContainer, container: Container) -> VideoStream:
    """The first real video track; a cover picture is not one."""
    films = [stream for stream in opened.streams.video if not stream.disposition & _NOT_A_FILM]
    if not films:
        raise UndecodableError(f"the {container.name} file has no video stream")
    for stream in films:
        if stream.codec_context is not None:
            return stream
    raise UnsupportedMediaError("the codec of the video stream is not known; convert the clip to H.264 or VP9")


def _read_packets(opened: InputContainer, stream: VideoStream, limits: DecodeLimits) -> Iterator[Packet[VideoStream]]:
    """All packets but the final flush; a file that breaks off gives those before the break."""
    try:
        for count, packet in enumerate(opened.demux(stream)):
            if count >= limits.max_packets:
                raise MediaTooLargeError(f"the clip has more than the limit of {limits.max_packets} coded pictures")
            if packet.size:
                yield packet
    except MemoryError:
        raise
    except av.error.FFmpegError:
        return


def _read_durations(packets: tuple[Packet[VideoStream], ...], codec: str) -> dict[int, int]:
    """Presentation time -> duration of each picture to be shown; edit lists and hidden pictures are left out."""
    durations: dict[int, int] = {}
    for packet in packets:
        tick = packet.pts if packet.pts is not None else packet.dts
        if tick is not None and not packet.is_discard and not _is_hidden(packet, codec):
            durations[tick] = packet.duration or 0
    return durations


def _is_hidden(packet: Packet[VideoStream], codec: str) -> bool:
    """VP8's alternate reference pictures travel in packets of their own with the show bit off."""
    return codec in ("vp8", "libvpx") and not memoryview(packet)[0] >> 4 & 1


def _pixel_aspect(stream: VideoStream) -> Fraction:
    aspect = stream.sample_aspect_ratio or stream.codec_context.sample_aspect_ratio
    return aspect if aspect and Fraction(1, 10) <= aspect <= 10 else Fraction(1)
