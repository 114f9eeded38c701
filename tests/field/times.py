"""Clips whose counts, rates, durations, starts or gaps are not what readers expect."""

from __future__ import annotations

import struct
from dataclasses import replace
from fractions import Fraction

from tests.clips import find_box, make_clip, make_gif
from tests.field.case import FieldCase, count, numbered, patch_all

NO_B = {"bf": "0"}
SCREEN_MS = (0, 7, 33, 90, 91, 250, 600, 601, 640, 1200, 1201, 1202, 1900, 2500, 2501, 2600, 3000, 3900, 3999, 4000)
GAP_MS = (*range(0, 1000, 100), 60_000)
LONG_FRAMES = 900


def make_durations_lie(value: int) -> bytes:
    data = make_clip(frames=30)
    boxes = (("moov/mvhd", 16), ("moov/trak/tkhd", 20), ("moov/trak/mdia/mdhd", 16))
    return patch_all(data, [(find_box(data, box)[0] + offset, struct.pack(">I", value)) for box, offset in boxes])


def make_avi_count_lie(value: int) -> bytes:
    data = make_clip(frames=30, container="avi", codec="mpeg4")
    lie = struct.pack("<I", value)
    return patch_all(data, [(data.index(b"avih") + 24, lie), (data.index(b"strh") + 40, lie)])


def make_tail_cut() -> bytes:
    """An edit list that shows the first 12 of 30 pictures."""
    data = make_clip(frames=30, options=NO_B)
    movie = find_box(data, "moov/mvhd")[0]
    timescale = struct.unpack(">I", data[movie + 12 : movie + 16])[0]
    entry = find_box(data, "moov/trak/edts/elst")[0] + 8
    return patch_all(data, [(entry, struct.pack(">I", timescale * 12 // 30))])


def make_wrapping() -> bytes:
    """A transport stream whose clock of 33 bits begins again in the middle."""
    options = {"output_ts_offset": "95443.0", "avoid_negative_ts": "disabled", "mpegts_copyts": "1"}
    return make_clip(frames=60, container="mpegts", options=NO_B, container_options=options)


TIME_CASES: tuple[FieldCase, ...] = (
    numbered("base.mp4", lambda: make_clip(frames=30), 30),
    numbered("faststart.mp4", lambda: make_clip(frames=30, container_options={"movflags": "faststart"}), 30),
    numbered("%03d $(id) видео.mp4", lambda: make_clip(frames=5), 5),
    numbered("mp4_named.avi", lambda: make_clip(frames=5), 5),
    *(numbered(f"frames_{n}.mp4", lambda n=n: make_clip(frames=n, options=NO_B), n) for n in (1, 2, 3, 5, 7)),
    numbered("count_zero.avi", lambda: make_avi_count_lie(0), 30),
    numbered("count_high.avi", lambda: make_avi_count_lie(3000), 30),
    numbered("duration_zero.mp4", lambda: make_durations_lie(0), 30),
    numbered("duration_x100.mp4", lambda: make_durations_lie(100_000), 30),
    numbered("fragments.mp4", lambda: make_clip(
        frames=30, container_options={"movflags": "frag_keyframe+empty_moov"}), 30),
    numbered("no_count.mkv", lambda: make_clip(frames=30, container="matroska"), 30),
    numbered("live.webm", lambda: make_clip(
        frames=30, container="webm", codec="libvpx-vp9", container_options={"live": "1"}), 30),
    numbered("stream.ts", lambda: make_clip(frames=30, container="mpegts"), 30),
    numbered("flash.flv", lambda: make_clip(frames=30, container="flv"), 30),
    numbered("windows.wmv", lambda: make_clip(frames=30, container="asf", codec="wmv2"), 30),
    numbered("timelapse.mp4", lambda: make_clip(frames=5, fps=Fraction(1, 10), options=NO_B), 5, rate_fps=0.1),
    numbered("fps_240.mp4", lambda: make_clip(frames=60, fps=240, options=NO_B), 60, rate_fps=240.0),
    numbered("ntsc.mp4", lambda: make_clip(frames=61, fps=Fraction(30_000, 1001)), 61, rate_fps=30_000 / 1001),
    replace(
        numbered("long_gap.mkv", lambda: make_clip(frames=11, pts_ms=GAP_MS, container="matroska"), 11, rate_fps=None),
        times_s=tuple(ms / 1000 for ms in GAP_MS)),
    replace(
        numbered("screen.webm", lambda: make_clip(
            frames=20, pts_ms=SCREEN_MS, container="webm", codec="libvpx-vp9"), 20, rate_fps=None),
        times_s=tuple(ms / 1000 for ms in SCREEN_MS)),
    numbered("starts_at_10s.mkv", lambda: make_clip(
        frames=20, fps=20, pts_ms=[10_000 + 50 * n for n in range(20)], container="matroska"), 20, rate_fps=20.0),
    numbered("clock_wraps.ts", make_wrapping, 60),
    numbered("tail_cut.mp4", make_tail_cut, 12),
    numbered("empty_start.mp4", lambda: make_clip(
        frames=20, fps=20, pts_ms=[1000 + 50 * n for n in range(20)], options=NO_B), 20, rate_fps=20.0),
    FieldCase(
        name="anim.gif", make=lambda: make_gif(delays_ms=[100, 500, 100, 1000]), numbers=count(4),
        times_s=(0.0, 0.1, 0.6, 0.7), duration_s=1.7, size=(96, 128)),
    FieldCase(
        name="no_delays.gif", make=lambda: make_gif(delays_ms=[0] * 5), numbers=count(5), rate_fps=10.0,
        size=(96, 128)),
    FieldCase(name="still.gif", make=lambda: make_gif(delays_ms=[100]), numbers=(0,), size=(96, 128)),
    FieldCase(
        name="quarter_hour.mp4", numbers=count(LONG_FRAMES), rate_fps=1.0, duration_s=float(LONG_FRAMES),
        make=lambda: make_clip(frames=LONG_FRAMES, fps=1, size=(48, 64), options=NO_B), size=(48, 64)),
)  # fmt: skip
