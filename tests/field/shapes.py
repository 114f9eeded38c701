"""Clips that are turned, squeezed, odd, tiny, thin or huge."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from tests.clips import draw_numbered, make_clip
from tests.field.case import FieldCase, count

NO_B = {"bf": "0"}


def make_turned(degrees: int) -> bytes:
    """A phone's clip: stored lying, shown upright."""
    shown = (96, 128) if degrees == 180 else (128, 96)
    stored = [np.rot90(draw_numbered(number, *shown), k=-degrees // 90) for number in range(6)]
    return make_clip(frames=stored, rotation=degrees)


def plain(height: int, width: int, frames: int) -> list[np.ndarray]:
    return [np.full((height, width, 3), 90, np.uint8) for _ in range(frames)]


def any_answer(
    name: str, height: int, width: int, *, pixel_format: str = "yuv420p", codec: str = "libx264"
) -> FieldCase:
    """A size that a model may refuse, with a reason; a decoder need not."""
    container = "matroska" if name.endswith("mkv") else "mp4"
    return FieldCase(
        name=name, outcome="either", size=(height, width),
        make=lambda: make_clip(
            frames=plain(height, width, 4), codec=codec, container=container, pixel_format=pixel_format),
    )  # fmt: skip


def make_many(frames: int) -> bytes:
    """Tiny pictures without number: the walk over them is the work."""
    return make_clip(
        frames=plain(16, 16, 1) * frames, fps=1000, options={"bf": "0", "crf": "40", "g": "1000"},
    )  # fmt: skip


SHAPE_CASES: tuple[FieldCase, ...] = (
    *(
        FieldCase(
            name=f"turned_{degrees}.mp4", make=lambda degrees=degrees: make_turned(degrees), numbers=count(6),
            size=(96, 128) if degrees == 180 else (128, 96), upright=True, rate_fps=30.0)
        for degrees in (90, 180, 270)
    ),
    FieldCase(
        name="turned_33.mp4", make=lambda: make_clip(frames=4, rotation=33), outcome="either", numbers=count(4),
        size=(96, 128), upright=True),
    FieldCase(
        name="squeezed.mp4", numbers=count(6), size=(96, 128), upright=True,
        make=lambda: make_clip(frames=6, size=(96, 64), context={"sample_aspect_ratio": Fraction(2)})),
    FieldCase(
        name="odd_444.mp4", numbers=count(4), size=(121, 161), upright=True,
        make=lambda: make_clip(frames=4, size=(121, 161), pixel_format="yuv444p")),
    FieldCase(
        name="odd.webm", numbers=count(4), size=(121, 161), upright=True,
        make=lambda: make_clip(frames=4, size=(121, 161), codec="libvpx-vp9", container="webm")),
    FieldCase(
        name="stride.mp4", numbers=count(4), size=(126, 250), upright=True,
        make=lambda: make_clip(frames=4, size=(126, 250), options=NO_B)),
    any_answer("1x1.mkv", 1, 1, codec="ffv1", pixel_format="bgr0"),
    any_answer("2x2.mp4", 2, 2),
    any_answer("16x16.mp4", 16, 16),
    any_answer("28x26.mp4", 28, 26),
    any_answer("thin_444.mp4", 639, 31, pixel_format="yuv444p"),
    any_answer("wide.mp4", 8, 2048),
    any_answer("tall.mp4", 2048, 8),
    FieldCase(
        name="many.mp4", outcome="either", make=lambda: make_many(4000), size=(16, 16)),
    FieldCase(
        name="very_many.mp4", outcome="either", make=lambda: make_many(40_000), size=(16, 16), size_class="big"),
    FieldCase(
        name="uhd.mp4", numbers=count(8), size=(2160, 4096), upright=True, size_class="big",
        make=lambda: make_clip(frames=8, size=(2160, 4096), options=NO_B)),
    FieldCase(
        name="8k.mp4", outcome="either", size=(4320, 8192), size_class="big",
        make=lambda: make_clip(frames=plain(4320, 8192, 1))),
    FieldCase(
        name="bomb.mkv", outcome="reject", size_class="big",
        make=lambda: make_clip(
            frames=[np.full((12_000, 12_000), 90, np.uint8)] * 2, codec="mjpeg", container="matroska",
            pixel_format="yuvj420p", source_format="gray", options={"qscale": "31"})),
)  # fmt: skip
