"""Clips of every codec, order of coding, depth and colour that people have."""

from __future__ import annotations

import io
from dataclasses import replace
from fractions import Fraction
from typing import Any

import av
import numpy as np

from tests.clips import draw_numbered, make_clip
from tests.field.case import FieldCase, numbered

X265 = "log-level=none:pools=none:frame-threads=1"
HDR = "colorprim=bt2020:colormatrix=bt2020nc"
AV1 = {"preset": "10", "svtav1-params": "lp=1"}
REORDERED = {"preset": "veryfast", "bf": "8", "g": "400", "sc_threshold": "0", "x264-params": "b-adapt=0"}


def make_hdr(transfer: str, number: int) -> bytes:
    return make_clip(
        frames=8, codec="libx265", pixel_format="yuv420p10le",
        options={"x265-params": f"{X265}:{HDR}:transfer={transfer}"},
        context={"colorspace": 9, "color_trc": number, "color_primaries": 9},
    )  # fmt: skip


def make_open_groups() -> bytes:
    return make_clip(
        frames=60, codec="libx265", fps=10,
        options={"x265-params": f"{X265}:open-gop=1:bframes=4:keyint=12:min-keyint=12:scenecut=0"},
    )  # fmt: skip


def make_mid_group() -> bytes:
    """A recording that begins inside a group: the first picture that can be shown is number 30."""
    data = make_clip(frames=60, container="mpegts", options={"g": "30", "sc_threshold": "0", "bf": "0"})
    return data[len(data) // 6 :]


def make_hidden_colour() -> bytes:
    """The right half is transparent, with noise hidden under it."""
    rng = np.random.default_rng(0)
    frames = []
    for number in range(4):
        picture = np.full((96, 128, 4), 255, np.uint8)
        picture[..., :3] = draw_numbered(number)
        picture[:, 64:] = rng.integers(0, 255, (96, 64, 4))
        picture[:, 64:, 3] = 0
        frames.append(picture)
    return make_clip(frames=frames, codec="qtrle", container="mov", pixel_format="argb", source_format="rgba")


def make_tracks(*tracks: tuple[str, int, int, int], container: str) -> bytes:
    """Several tracks in one file. Each: codec, first number, width, frames; a picture of a cover is one frame."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        streams: list[Any] = []
        for codec, _, width, frames in tracks:
            stream: Any = output.add_stream(codec, rate=30)
            stream.width, stream.height = width, width * 3 // 4
            stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
            if frames == 1:
                stream.disposition = av.stream.Disposition.attached_pic
            streams.append(stream)
        for stream, (_, first, width, frames) in zip(streams, tracks, strict=True):
            for index in range(frames):
                picture = draw_numbered(first + index, width * 3 // 4, width)
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format=stream.pix_fmt)
                frame.pts, frame.time_base = index, Fraction(1, 30)
                output.mux(stream.encode(frame))
            output.mux(stream.encode(None))
    return file.getvalue()


CODEC_CASES: tuple[FieldCase, ...] = (
    numbered("one_key.mp4", lambda: make_clip(frames=60, options=REORDERED), 60),
    numbered("reordered.avi", lambda: make_clip(frames=30, container="avi", options={**REORDERED, "bf": "2"}), 30),
    numbered("open_groups.mp4", make_open_groups, 60, rate_fps=10.0),
    FieldCase(name="mid_group.ts", make=make_mid_group, outcome="either", numbers=tuple(range(30, 60)), upright=True),
    numbered("av1.mp4", lambda: make_clip(frames=8, codec="libsvtav1", options=AV1), 8),
    numbered("av1_deep.webm", lambda: make_clip(
        frames=8, codec="libsvtav1", options=AV1, container="webm", pixel_format="yuv420p10le"), 8),
    numbered("hevc.mp4", lambda: make_clip(frames=8, codec="libx265"), 8),
    replace(numbered("pq.mp4", lambda: make_hdr("smpte2084", 16), 8), tolerance=75),
    replace(numbered("hlg.mp4", lambda: make_hdr("arib-std-b67", 18), 8), tolerance=75),
    numbered("deep.mp4", lambda: make_clip(frames=8, pixel_format="yuv420p10le"), 8),
    numbered("422.mp4", lambda: make_clip(frames=8, pixel_format="yuv422p"), 8),
    replace(numbered("grey.mp4", lambda: make_clip(frames=8, pixel_format="gray"), 8), upright=False),
    replace(numbered("full_range.mp4", lambda: make_clip(frames=8, pixel_format="yuvj420p"), 8), tolerance=12),
    numbered("interlaced.mp4", lambda: make_clip(frames=30, options={"bf": "0", "x264-params": "tff=1"}), 30),
    numbered("vp8.webm", lambda: make_clip(frames=8, codec="libvpx", container="webm"), 8),
    numbered("vp9.webm", lambda: make_clip(frames=8, codec="libvpx-vp9", container="webm"), 8),
    numbered("vp9_alpha.webm", lambda: make_clip(
        frames=8, codec="libvpx-vp9", container="webm", pixel_format="yuva420p"), 8),
    numbered("prores.mov", lambda: make_clip(
        frames=8, codec="prores_ks", container="mov", pixel_format="yuva444p10le", options={"profile": "4"}), 8),
    numbered("mjpeg.avi", lambda: make_clip(frames=8, codec="mjpeg", container="avi", pixel_format="yuvj422p"), 8),
    numbered("mpeg2.mpg", lambda: make_clip(frames=30, codec="mpeg2video", container="mpeg"), 30),
    replace(numbered("lossless.mkv", lambda: make_clip(
        frames=8, codec="ffv1", container="matroska", pixel_format="bgr0"), 8), tolerance=0),
    FieldCase(name="hidden_colour.mov", make=make_hidden_colour, size=(96, 128)),
    numbered("cover_first.mp4", lambda: make_tracks(
        ("mjpeg", 900, 64, 1), ("libx264", 0, 128, 12), container="mp4"), 12),
    numbered("two_tracks.mkv", lambda: make_tracks(
        ("libx264", 0, 128, 12), ("libx264", 1000, 64, 12), container="matroska"), 12),
)  # fmt: skip
