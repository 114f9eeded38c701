"""Small clips and pictures made on the spot, for tests of any room.

Every frame shows its own number as black and white bars and has coloured corners, so that a test can tell which frame
it was given, which way up it is and whether its colours are right. Knows nothing of the code under test.
"""

from __future__ import annotations

import io
import os
import struct
import tempfile
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from PIL import Image

Picture = npt.NDArray[np.uint8]  # (h, w, 3)

BITS = 12
RED, GREEN, BLUE, WHITE = (220, 30, 30), (30, 200, 30), (30, 30, 220), (235, 235, 235)

_SPEED: Mapping[str, dict[str, str]] = {
    "libx264": {"preset": "ultrafast", "crf": "16", "threads": "1"},
    "libx265": {"preset": "ultrafast", "x265-params": "log-level=none:pools=none:frame-threads=1"},
    "libvpx": {"deadline": "realtime", "cpu-used": "8", "b": "1000000"},
    "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8", "crf": "20", "b": "0"},
}


def draw_numbered(number: int, height: int = 96, width: int = 128) -> Picture:
    """A picture that says `number` in its middle band; corners red, green / blue, white."""
    picture = np.empty((height, width, 3), np.uint8)
    picture[:] = (40 + 7 * number) % 200, (90 + 3 * number) % 200, (140 + 11 * number) % 200
    tall, wide = height // 4, width // 4
    picture[:tall, :wide], picture[:tall, -wide:] = RED, GREEN
    picture[-tall:, :wide], picture[-tall:, -wide:] = BLUE, WHITE
    edges = np.linspace(0, width, BITS + 1).astype(int)
    for bit in range(BITS):
        band = picture[int(height * 0.4) : int(height * 0.6), edges[bit] : edges[bit + 1]]
        band[:] = 245 if number >> (BITS - 1 - bit) & 1 else 10
    return picture


def read_number(picture: Picture) -> int:
    """The number a picture says, at any scale; (h, w, 3) or (3, h, w)."""
    picture = _channels_last(picture)
    height, width = picture.shape[:2]
    centres = ((np.arange(BITS) + 0.5) * width / BITS).astype(int)
    bits = picture[int(height * 0.47) : int(height * 0.53) + 1, centres].mean(axis=(0, 2)) > 128
    return int("".join("1" if bit else "0" for bit in bits), 2)


def read_numbers(pictures: Sequence[Picture] | Picture) -> list[int]:
    return [read_number(picture) for picture in pictures]


def read_corners(picture: Picture) -> list[tuple[int, int, int]]:
    """RGB of the four corners: top left, top right, bottom left, bottom right."""
    picture = _channels_last(picture)
    height, width = picture.shape[:2]
    places = [(y, x) for y in (height // 10, height - 1 - height // 10) for x in (width // 10, width - 1 - width // 10)]
    return [tuple(int(value) for value in picture[y, x]) for y, x in places]  # type: ignore[misc]


def looks_upright(picture: Picture, tolerance: int = 40) -> bool:
    """True when the corners are red, green, blue, white in reading order."""
    differences = np.abs(np.array(read_corners(picture)) - np.array([RED, GREEN, BLUE, WHITE]))
    return bool(differences.max() <= tolerance)


def make_clip(
    path: Path | None = None,
    *,
    frames: int | Sequence[Picture] = 30,
    fps: float | Fraction = 30,
    size: tuple[int, int] = (96, 128),
    codec: str = "libx264",
    container: str = "mp4",
    pixel_format: str = "yuv420p",
    pts_ms: Sequence[int] | None = None,
    rotation: float = 0,
    source_format: str = "rgb24",
    options: Mapping[str, str] | None = None,
    container_options: Mapping[str, str] | None = None,
    context: Mapping[str, Any] | None = None,
) -> bytes:
    """Encode a clip; its bytes, which are also written to `path` if one is given.

    frames: how many numbered frames, or the frames themselves in `source_format`.
    size: (height, width) of numbered frames. pts_ms: times in milliseconds, for a varying rate.
    rotation: display rotation written into the container, degrees counter-clockwise.
    context: attributes to set on the encoder (colorspace, color_range, ...).
    """
    pictures = [draw_numbered(number, *size) for number in range(frames)] if isinstance(frames, int) else frames
    rate = Fraction(fps).limit_denominator(100_000)
    time_base = Fraction(1, 1000) if pts_ms is not None else 1 / rate
    with (
        tempfile.NamedTemporaryFile() as file,  # a real file: moving the index to the front reads it again
        av.open(file.name, "w", format=container, options=dict(container_options or {})) as output,
    ):
        stream: Any = output.add_stream(codec, rate=rate, options={**_SPEED.get(codec, {}), **(options or {})})
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt = pixel_format
        stream.codec_context.time_base = time_base
        for name, value in (context or {}).items():
            setattr(stream.codec_context, name, value)
        if rotation:
            stream.set_display_rotation(rotation)
        for index, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format=source_format)
            if frame.format.name != pixel_format:
                frame = frame.reformat(format=pixel_format, dst_colorspace=(context or {}).get("colorspace"))
            frame.pts, frame.time_base = pts_ms[index] if pts_ms is not None else index, time_base
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
        output.close()
        data = file.read()
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # SVT-AV1 makes its caller a real-time program
    return _written(data, path)


def repeat_clip(data: bytes, times: int) -> bytes:
    """An MP4 clip so many times on end, without encoding anything again."""
    file = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(file, "w", format="mp4") as output:
        packets = [packet for packet in source.demux(video=0) if packet.dts is not None]
        stream = output.add_stream_from_template(source.streams.video[0])
        length = sum(packet.duration or 0 for packet in packets)
        for number in range(times):
            for packet in packets:
                again = av.Packet(bytes(packet))
                again.stream, again.time_base, again.is_keyframe = stream, packet.time_base, packet.is_keyframe
                again.pts, again.dts = packet.pts + number * length, packet.dts + number * length
                output.mux(again)
    return file.getvalue()


def make_audio(path: Path | None = None, *, container: str = "mp4", codec: str = "aac", seconds: float = 0.2) -> bytes:
    """A file with sound and no video."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream = output.add_stream(codec, rate=48_000, layout="mono")
        for start in range(0, int(48_000 * seconds), 1024):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = 48_000, start, Fraction(1, 48_000)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return _written(file.getvalue(), path)


def make_image(
    path: Path | None = None,
    *,
    picture: Picture | Image.Image | None = None,
    size: tuple[int, int] = (96, 128),
    image_format: str = "PNG",
    exif_orientation: int = 1,
    **save_options: Any,
) -> bytes:
    """Encode one picture (by default the numbered picture 5) with Pillow."""
    shown = draw_numbered(5, *size) if picture is None else picture
    image = shown if isinstance(shown, Image.Image) else Image.fromarray(shown)
    if exif_orientation != 1:
        exif = Image.Exif()
        exif[0x0112] = exif_orientation
        save_options["exif"] = exif
    file = io.BytesIO()
    image.save(file, image_format, **save_options)
    return _written(file.getvalue(), path)


def make_gif(path: Path | None = None, *, delays_ms: Sequence[int], size: tuple[int, int] = (96, 128)) -> bytes:
    """An animated GIF of numbered frames, each shown for its delay."""
    images = [Image.fromarray(draw_numbered(number, *size)).quantize(64) for number in range(len(delays_ms))]
    file = io.BytesIO()
    images[0].save(file, "GIF", save_all=True, append_images=images[1:], duration=list(delays_ms), loop=0)
    return _written(file.getvalue(), path)


def find_box(data: bytes, path: str) -> tuple[int, int]:
    """[start of the body, end) of an MP4 box, such as "moov/trak/tkhd"."""
    start, stop = 0, len(data)
    for name in path.split("/"):
        while True:
            length, kind = struct.unpack(">I4s", data[start : start + 8])
            if kind == name.encode():
                start, stop = start + 8, start + length
                break
            start += length
            if start >= stop:
                raise KeyError(path)
    return start, stop


def patch(data: bytes, offset: int, layout: str, *values: int) -> bytes:
    """The bytes with a packed value written over them: how headers are made to lie."""
    changed = bytearray(data)
    struct.pack_into(layout, changed, offset, *values)
    return bytes(changed)


def _channels_last(picture: Picture) -> Picture:
    return picture.transpose(1, 2, 0) if picture.shape[0] == 3 and picture.shape[-1] != 3 else picture


def _written(data: bytes, path: Path | None) -> bytes:
    if path is not None:
        path.write_bytes(data)
    return data
