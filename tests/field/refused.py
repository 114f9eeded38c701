"""What is damaged, not a video, or not what it says; most of it must be refused, some may be half used."""

from __future__ import annotations

import random
import struct

from PIL import Image

from tests.clips import draw_numbered, find_box, make_audio, make_clip, make_image
from tests.field.case import FieldCase, count, patch_all

TABLES = "moov/trak/mdia/minf/stbl/"
FRONT = {"movflags": "faststart"}
GROUPS = {"bf": "0", "g": "10"}
CENC = {
    "encryption_scheme": "cenc-aes-ctr", "encryption_key": "00112233445566778899aabbccddeeff",
    "encryption_kid": "0123456789abcdef0123456789abcdef",
}  # fmt: skip


def base(frames: int = 40, **options: object) -> bytes:
    return make_clip(frames=frames, options=GROUPS, **options)  # type: ignore[arg-type]


def make_without_samples() -> bytes:
    data = base(2)
    counts = (("stsz", 8), ("stts", 4), ("stsc", 4), ("stco", 4), ("stss", 4))
    return patch_all(data, [(find_box(data, TABLES + box)[0] + offset, bytes(4)) for box, offset in counts])


def make_cut_in_first_picture() -> bytes:
    data = base(container_options=FRONT)
    return data[: find_box(data, "mdat")[0] + 40]


def make_wrong_length() -> bytes:
    """One picture claims to be 2 GiB long."""
    data = base()
    start, stop = find_box(data, "mdat")
    return patch_all(data, [(start + (stop - start) // 8 * 4, b"\x7f\xff\xff\xff")])


def make_sample_bomb() -> bytes:
    data = base()
    return patch_all(data, [(find_box(data, TABLES + "stsz")[0] + 8, b"\x7f\xff\xff\xff")])


def make_box_bomb() -> bytes:
    data = base(container_options=FRONT)
    return patch_all(data[:4000], [(find_box(data, "moov")[0] - 8, b"\xff\xff\xff\xf0")])


def make_song_with_cover() -> bytes:
    cover = make_image(picture=draw_numbered(5), image_format="JPEG")
    body = b"\0image/jpeg\0\x03\0" + cover
    frame = b"APIC" + struct.pack(">I", len(body)) + b"\0\0" + body
    length = bytes(len(frame) >> shift & 127 for shift in (21, 14, 7, 0))
    return b"ID3\x03\0\0" + length + frame + make_audio(container="mp3", codec="libmp3lame")


def make_moving(image_format: str) -> bytes:
    """An animated picture of three numbered frames."""
    more = [Image.fromarray(draw_numbered(number)) for number in (1, 2)]
    first = draw_numbered(0)
    return make_image(picture=first, image_format=image_format, save_all=True, append_images=more, duration=200)


def refused(name: str, data: bytes) -> FieldCase:
    return FieldCase(name=name, make=lambda: data, outcome="reject")


def half_used(name: str, make: object, frames: int = 40) -> FieldCase:
    return FieldCase(name=name, make=make, outcome="either", numbers=count(frames))  # type: ignore[arg-type]


REFUSED_CASES: tuple[FieldCase, ...] = (
    refused("empty.mp4", b""),
    refused("ftyp_only.mp4", struct.pack(">I4s4sI4s", 20, b"ftyp", b"isom", 512, b"isom")),
    refused("noise.mp4", random.Random(2).randbytes(65_536)),
    refused("page.mp4", b"<!doctype html><html><body>404 Not Found</body></html>\n" * 20),
    refused("subtitle.srt", b"1\n00:00:00,000 --> 00:00:02,000\nhello\n"),
    refused("hls_inward.mp4", b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1.0,\nhttp://127.0.0.1:9/x.ts\n"),
    refused("hls_file.m3u8", b"#EXTM3U\n#EXTINF:1.0,\nfile:///etc/hostname\n#EXT-X-ENDLIST\n"),
    refused("concat.mp4", b"ffconcat version 1.0\nfile base.mp4\nduration 2\n"),
    refused("sdp.mp4", b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nm=video 5004 RTP/AVP 96\n"),
    FieldCase(name="no_samples.mp4", make=make_without_samples, outcome="reject"),
    FieldCase(name="audio.m4a", make=make_audio, outcome="reject"),
    FieldCase(name="audio.wav", make=lambda: make_audio(container="wav", codec="pcm_f32le"), outcome="reject"),
    FieldCase(name="cover.mp3", make=make_song_with_cover, outcome="reject"),
    FieldCase(name="index_lost.mp4", make=lambda: base()[: len(base()) // 2], outcome="reject"),
    FieldCase(name="cut_in_first.mp4", make=make_cut_in_first_picture, outcome="reject"),
    FieldCase(name="encrypted.mp4", make=lambda: make_clip(frames=12, container_options=CENC), outcome="reject"),
    FieldCase(name="box_bomb.mp4", make=make_box_bomb, outcome="either"),
    half_used("picture.mp4", make_image, 0),
    half_used("moving.png", lambda: make_moving("PNG"), 3),
    half_used("moving.webp", lambda: make_moving("WEBP"), 3),
    half_used("cut.mp4", lambda: base(container_options=FRONT)[: len(base()) * 6 // 10]),
    half_used("last_byte.mp4", lambda: base(container_options=FRONT)[:-1]),
    half_used("wrong_length.mp4", make_wrong_length),
    half_used("sample_bomb.mp4", make_sample_bomb),
    half_used("raw.h264", lambda: base(container="h264")),
)  # fmt: skip
