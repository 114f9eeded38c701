"""Files are known by their bytes, and what is not known is refused with a reason."""

from __future__ import annotations

import pytest

from tests.clips import make_audio, make_clip, make_gif, make_image
from vision.containers import HEAD_BYTES, sniff_container
from vision.errors import UndecodableError, UnsupportedMediaError


@pytest.mark.parametrize(
    ("container", "codec", "reader"),
    [
        ("mp4", "libx264", "mov"), ("mov", "libx264", "mov"), ("matroska", "libx264", "matroska"),
        ("webm", "libvpx", "matroska"), ("avi", "mpeg4", "avi"), ("mpegts", "libx264", "mpegts"),
        ("mpeg", "mpeg2video", "mpeg"), ("asf", "msmpeg4", "asf"), ("flv", "flv", "flv"),
    ],
)  # fmt: skip
def test_video_containers_are_known(container: str, codec: str, reader: str) -> None:
    data = make_clip(frames=3, container=container, codec=codec)
    assert sniff_container(data[:HEAD_BYTES], "video").reader == reader


def test_a_transport_stream_may_begin_inside_a_packet() -> None:
    data = make_clip(frames=3, container="mpegts")
    assert sniff_container(data[100 : 100 + HEAD_BYTES], "video").reader == "mpegts"


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP", "BMP", "GIF"])
def test_image_formats_are_known(image_format: str) -> None:
    data = make_image(image_format=image_format)
    assert sniff_container(data[:HEAD_BYTES], "image").reader in (image_format, image_format.lower())


def test_gif_is_both() -> None:
    head = make_gif(delays_ms=[100, 100])[:HEAD_BYTES]
    assert sniff_container(head, "image") == sniff_container(head, "video")


def test_the_other_kind_says_how_to_send_it() -> None:
    with pytest.raises(UnsupportedMediaError, match=r"an image \(PNG\); send it as an image"):
        sniff_container(make_image()[:HEAD_BYTES], "video")
    with pytest.raises(UnsupportedMediaError, match=r"a video \(MP4/MOV\); send it as a video"):
        sniff_container(make_clip(frames=2)[:HEAD_BYTES], "image")


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"ffconcat version 1.0\nfile base.mp4\n", "a playlist"),
        (b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1/x.ts\n", "a playlist"),
        (b"v=0\no=- 0 0 IN IP4 127.0.0.1\nm=video 5004 RTP/AVP 96\n", "a playlist"),
        (b'<?xml version="1.0"?><MPD></MPD>', "a playlist"),
        (b"<!doctype html><html>404</html>", "a web page"),
        (b"1\n00:00:00,000 --> 00:00:02,000\nhello\n", "text"),
        (b"RIFF\x24\x00\x00\x00WAVEfmt ", "an audio file"),
        (b"ID3\x03\x00\x00\x00\x00\x00\x00", "an audio file"),
        (b"\x00\x00\x00\x01\x67\x42\x00\x0a", "a raw stream"),
        (b"\x00\x00\x00\x1cftypavif\x00\x00\x00\x00", "HEIF or AVIF"),
        (b"PK\x03\x04", "an archive"),
        (b"\x93\x01\xf7\x80" * 64, "no container that is known"),
    ],
)
def test_everything_else_is_refused_with_a_reason(head: bytes, reason: str) -> None:
    with pytest.raises(UnsupportedMediaError, match=reason):
        sniff_container(head, "video")


def test_empty_is_said_to_be_empty() -> None:
    with pytest.raises(UndecodableError, match="empty"):
        sniff_container(b"", "video")


def test_sound_in_a_video_container_is_left_to_the_demuxer() -> None:
    assert sniff_container(make_audio()[:HEAD_BYTES], "video").reader == "mov"
