"""Clips of every kind give the frames they show, at the times they show them."""

from __future__ import annotations

import contextlib
import re
from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.clips import (
    BLUE,
    draw_numbered,
    find_box,
    looks_upright,
    make_clip,
    make_gif,
    make_image,
    patch,
    read_corners,
    read_number,
    read_numbers,
)
from tests.vision.sinks import decode
from vision.errors import MediaError, MediaTooLargeError, UndecodableError, UnsupportedMediaError
from vision.limits import DecodeLimits
from vision.resize import VideoSmartResize, resize_frames
from vision.sampling import SamplingPolicy

GIF_TIMES_S = (0.0, 0.1, 0.6, 0.7)


@pytest.mark.parametrize(
    ("container", "codec"),
    [
        ("mp4", "libx264"), ("mov", "libx264"), ("matroska", "libx264"), ("webm", "libvpx"), ("webm", "libvpx-vp9"),
        ("avi", "mpeg4"), ("mpegts", "libx264"), ("mpeg", "mpeg2video"), ("flv", "flv"), ("asf", "msmpeg4"),
        ("mp4", "libx265"),
    ],
)  # fmt: skip
def test_every_container_gives_every_frame(container: str, codec: str) -> None:
    report, pixels = decode(make_clip(frames=30, container=container, codec=codec))
    assert read_numbers(pixels) == list(range(30))
    assert report.frame_indices == tuple(range(30))
    assert report.times_s == pytest.approx([index / 30 for index in range(30)], abs=1.1e-3)
    assert report.duration_s == pytest.approx(1.0, abs=2e-3)
    assert report.source_fps == pytest.approx(30.0)
    assert (report.num_frames, report.num_broken, report.source_size) == (30, 0, (96, 128))
    assert looks_upright(pixels[0])


@pytest.mark.parametrize("codec", ["libx264", "libx265"])
def test_reordered_pictures_come_out_in_order(codec: str) -> None:
    """B-frames and a single keyframe: index k shows picture k, for every k and for a sparse choice."""
    options = {"bf": "4", "g": "250"} if codec == "libx264" else {"x265-params": "bframes=4:log-level=none:pools=none"}
    data = make_clip(frames=50, codec=codec, options={"preset": "veryfast", **options})
    report, pixels = decode(data)
    assert read_numbers(pixels) == list(range(50))
    report, pixels = decode(data, SamplingPolicy(num_frames=7))
    assert read_numbers(pixels) == list(report.frame_indices) == [0, 8, 16, 24, 33, 41, 49]


def test_hidden_pictures_are_not_frames() -> None:
    """VP8's alternate reference pictures are packets that are never shown."""
    options = {"auto-alt-ref": "1", "lag-in-frames": "16", "deadline": "good", "cpu-used": "5", "arnr-maxframes": "7"}
    report, pixels = decode(make_clip(frames=40, container="webm", codec="libvpx", options=options))
    assert (report.num_frames, report.num_broken) == (40, 0)
    assert read_numbers(pixels) == list(range(40))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7])
def test_short_clips_give_all_they_have(count: int) -> None:
    report, pixels = decode(make_clip(frames=count), SamplingPolicy(fps=1.0, min_frames=4))
    assert len(pixels) == min(count, 4)
    assert report.duration_s == pytest.approx(count / 30)


def test_ntsc_times_are_exact() -> None:
    report, _ = decode(make_clip(frames=61, fps=Fraction(30_000, 1001)))
    assert report.times_s[60] == pytest.approx(2.002)
    assert report.source_fps == pytest.approx(30_000 / 1001)


def test_varying_rate_gives_real_times() -> None:
    """Times of a screen recorder: 1 ms steps and long gaps."""
    pts_ms = [0, 7, 33, 90, 91, 250, 600, 601, 640, 1200, 1201, 1202, 1900, 2500]
    data = make_clip(frames=len(pts_ms), pts_ms=pts_ms, container="matroska")
    report, pixels = decode(data)
    assert read_numbers(pixels) == list(range(len(pts_ms)))
    assert report.times_s == pytest.approx([ms / 1000 for ms in pts_ms])


def test_a_gap_is_sampled_as_what_is_on_screen() -> None:
    data = make_clip(frames=11, pts_ms=[*range(0, 1000, 100), 60_000], container="matroska")
    report, pixels = decode(data, SamplingPolicy(fps=0.1))
    assert read_numbers(pixels) == [0, 9, 9, 9, 9, 10]
    assert report.times_s[-1] == pytest.approx(60.0)


def test_time_counts_from_the_first_picture() -> None:
    data = make_clip(frames=20, fps=20, pts_ms=[10_000 + 50 * index for index in range(20)], container="matroska")
    report, _ = decode(data)
    assert report.times_s[0] == 0.0
    assert report.duration_s == pytest.approx(1.0)


@pytest.mark.parametrize("value", [0, 0x7FFFFFFE])
def test_durations_in_headers_are_not_believed(value: int) -> None:
    data = make_clip(frames=30)
    for box, offset in (("moov/mvhd", 16), ("moov/trak/tkhd", 20), ("moov/trak/mdia/mdhd", 16)):
        data = patch(data, find_box(data, box)[0] + offset, ">I", value)
    report, pixels = decode(data)
    assert report.duration_s == pytest.approx(1.0)
    assert read_numbers(pixels) == list(range(30))


def test_counts_in_headers_are_not_believed() -> None:
    data = make_clip(frames=12, container="avi", codec="mpeg4")
    data = patch(data, data.index(b"avih") + 8 + 16, "<I", 0)
    data = patch(data, data.index(b"strh") + 8 + 32, "<I", 0)
    assert read_numbers(decode(data)[1]) == list(range(12))


def test_live_webm_without_duration_is_read() -> None:
    data = make_clip(frames=20, container="webm", codec="libvpx", container_options={"live": "1"})
    assert decode(data)[0].duration_s == pytest.approx(20 / 30, abs=2e-3)


def test_fragmented_mp4_is_read() -> None:
    data = make_clip(frames=20, container_options={"movflags": "frag_keyframe+empty_moov"})
    assert read_numbers(decode(data)[1]) == list(range(20))


def test_gif_delays_are_times() -> None:
    report, pixels = decode(make_gif(delays_ms=[100, 500, 100, 1000]))
    assert report.times_s == pytest.approx(GIF_TIMES_S)
    assert report.duration_s == pytest.approx(1.7)
    assert read_numbers(pixels) == [0, 1, 2, 3]


def test_gif_without_delays_gets_finite_times() -> None:
    report, _ = decode(make_gif(delays_ms=[0, 0, 0]))
    assert report.times_s == pytest.approx([0.0, 0.1, 0.2])


@pytest.mark.parametrize("rotation", [90, 180, 270])
def test_rotated_clips_are_upright(rotation: int) -> None:
    """The size rule sees the size as shown: a phone's portrait clip is taller than wide."""
    shown = (128, 96) if rotation != 180 else (96, 128)
    stored = [np.rot90(draw_numbered(number, *shown), k=-rotation // 90) for number in range(4)]
    report, pixels = decode(make_clip(frames=stored, rotation=rotation))
    assert report.source_size == shown == pixels.shape[2:]
    assert looks_upright(pixels[0])
    assert read_numbers(pixels) == [0, 1, 2, 3]


def test_pixels_that_are_not_square_are_shown_square() -> None:
    data = make_clip(frames=3, size=(96, 64), context={"sample_aspect_ratio": Fraction(2)})
    report, pixels = decode(data)
    assert report.source_size == pixels.shape[2:] == (96, 128)
    assert read_numbers(pixels) == [0, 1, 2]


@pytest.mark.parametrize(("codec", "container"), [("libx264", "mp4"), ("libvpx-vp9", "webm")])
def test_odd_sizes_have_no_skew(codec: str, container: str) -> None:
    data = make_clip(frames=4, size=(121, 161), codec=codec, container=container, pixel_format="yuv444p")
    report, pixels = decode(data)
    assert report.source_size == (121, 161)
    assert read_numbers(pixels) == [0, 1, 2, 3]
    assert looks_upright(pixels[0])


def test_frames_are_resized_as_transformers_would() -> None:
    """The whole path equals: decode at full size, then resize the clip."""
    data = make_clip(frames=6, size=(121, 161), pixel_format="yuv444p")
    _, full = decode(data)
    policy = VideoSmartResize(min_pixels=1, max_pixels=6 * 64 * 96)
    report, small = decode(data, resize=policy)
    assert (report.height, report.width) == policy.target_size(6, 121, 161) == small.shape[2:]
    expected = resize_frames(torch.from_numpy(full), (report.height, report.width), interpolation="bicubic")
    assert np.array_equal(small, expected.numpy())


def test_truncated_clips_spread_over_what_is_left() -> None:
    data = make_clip(frames=60, options={"g": "15"}, container_options={"movflags": "faststart"})
    report, pixels = decode(data[: int(len(data) * 0.6)], SamplingPolicy(num_frames=5))
    assert 10 < report.num_frames < 60
    assert report.frame_indices[-1] == report.num_frames - 1
    assert read_numbers(pixels) == list(report.frame_indices)


def test_damaged_frames_are_skipped_and_counted() -> None:
    """A clip damaged in the middle is sampled over the frames that decode, and says how many did not."""
    clean = make_clip(frames=40, options={"g": "10"})
    start, stop = find_box(clean, "mdat")
    middle = (start + stop) // 2
    damaged = clean[:middle] + b"\xff" * 600 + clean[middle + 600 :]
    report, pixels = decode(damaged)
    assert 0 < report.num_broken < 20
    assert report.num_frames == len(pixels) == 40 - report.num_broken
    assert set(read_numbers(pixels)) <= set(range(40))
    assert len(report.frame_indices) == report.num_frames


def test_a_clip_that_begins_inside_a_group_starts_at_its_keyframe() -> None:
    data = make_clip(frames=60, container="mpegts", options={"g": "30", "sc_threshold": "0"})
    report, pixels = decode(data[len(data) // 6 :])
    assert read_number(pixels[0]) == 30
    assert report.times_s[0] == 0.0
    assert report.num_broken > 0


def test_every_cut_of_a_file_is_an_answer_or_a_media_error() -> None:
    """No other exception escapes, wherever the file breaks off, and messages hold nothing of the machine."""
    data = make_clip(frames=6, container_options={"movflags": "faststart"})
    messages = set()
    for length in range(1, min(len(data), 3000), 61):
        with contextlib.suppress(MediaError):
            try:
                decode(data[:length])
            except MediaError as error:
                messages.add(error.message)
                raise
    assert messages
    assert not any(re.search(r"0x|Errno|Traceback|[a-z]+/[a-z]+/", message) for message in messages)


def test_alpha_is_shown_over_white() -> None:
    """The colour hidden under transparent pixels never shows."""
    picture = np.zeros((32, 64, 4), np.uint8)
    picture[:, :32], picture[:, 32:] = (*BLUE, 255), (255, 0, 200, 0)
    data = make_clip(frames=[picture] * 2, codec="qtrle", container="mov", pixel_format="argb", source_format="rgba")
    _, pixels = decode(data)
    assert tuple(pixels[0, :, 16, 10]) == BLUE
    assert (pixels[0, :, :, 40:] == 255).all()


@pytest.mark.parametrize(
    ("pixel_format", "context"),
    [
        ("yuv420p", {}),
        ("yuvj420p", {}),
        ("yuv420p10le", {}),
        ("yuv420p", {"colorspace": 1, "color_primaries": 1, "color_trc": 1}),
        ("yuv420p", {"colorspace": 6}),
    ],
)
def test_colours_come_out_as_drawn(pixel_format: str, context: dict[str, int]) -> None:
    """Full and limited range, 8 and 10 bits, BT.601 and BT.709 as tagged."""
    _, pixels = decode(make_clip(frames=2, pixel_format=pixel_format, context=context))
    drawn = np.array(read_corners(draw_numbered(0)))
    assert np.abs(np.array(read_corners(pixels[0])) - drawn).max() <= 12


def test_gray_clips_have_three_channels() -> None:
    _, pixels = decode(make_clip(frames=2, pixel_format="gray"))
    assert pixels.shape[1] == 3
    assert read_numbers(pixels) == [0, 1]


def test_a_gif_as_an_image_is_its_first_picture() -> None:
    report, pixels = decode(make_gif(delays_ms=[100, 100]), kind="image")
    assert (len(pixels), read_number(pixels[0]), report.duration_s) == (1, 0, 0.0)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (DecodeLimits(max_pixels_per_frame=96 * 128 - 1), "128x96 is above the limit of 12287 pixels"),
        (DecodeLimits(max_duration_s=0.5), "the limit is 0 s|the limit is 1 s"),
        (DecodeLimits(max_packets=29), "limit of 29 coded pictures"),
    ],
)
def test_limits_are_named(limits: DecodeLimits, message: str) -> None:
    with pytest.raises(MediaTooLargeError, match=message):
        decode(make_clip(frames=30), limits=limits)


def test_limits_are_checked_before_decoding() -> None:
    """The header alone refuses a picture of 64 million pixels: nothing of that size is ever allocated."""
    data = make_clip(frames=[np.zeros((64, 64, 3), np.uint8)], container="avi", codec="rawvideo", pixel_format="bgr24")
    where = data.index(b"strf") + 8
    data = patch(data, where + 4, "<ii", 8192, 8192)
    with pytest.raises(MediaTooLargeError, match="8192x8192"):
        decode(data)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", UndecodableError),
        (b"\x00\x00\x00\x14ftypisom\x00\x00\x02\x00isom", UndecodableError),
        (b"ffconcat version 1.0\nfile base.mp4\n", UnsupportedMediaError),
        (b"\x1aE\xdf\xa3" + b"\x00" * 64, UndecodableError),
    ],
)
def test_what_cannot_be_shown_is_refused(data: bytes, error: type[MediaError]) -> None:
    with pytest.raises(error):
        decode(data)


def test_an_image_is_not_a_clip() -> None:
    with pytest.raises(UnsupportedMediaError, match="send it as an image"):
        decode(make_image())
