"""What a file really is, from its first bytes: container, and the one demuxer that may read it.

Owns the list of what is taken. Knows nothing of names, MIME types or extensions (they lie), nor of decoding.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vision.errors import UndecodableError, UnsupportedMediaError
from vision.frames import MediaKind

HEAD_BYTES = 4096

VIDEO_CONTAINERS = "MP4/MOV, Matroska/WebM, AVI, MPEG-TS, MPEG-PS, GIF, Ogg, ASF/WMV, FLV"
IMAGE_CONTAINERS = "JPEG, PNG, WebP, BMP, GIF"


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """`name` is for people, `reader` is the FFmpeg demuxer or the Pillow format; `kinds` is what it can serve as."""

    name: str
    reader: str
    kinds: tuple[MediaKind, ...]


_VIDEO: tuple[MediaKind, ...] = ("video",)
_IMAGE: tuple[MediaKind, ...] = ("image",)
_EITHER: tuple[MediaKind, ...] = ("video", "image")

_SIGNATURES: tuple[tuple[re.Pattern[bytes], Container], ...] = tuple(
    (re.compile(pattern, re.DOTALL), Container(name=name, reader=reader, kinds=kinds))
    for pattern, name, reader, kinds in (
        (rb"\x1aE\xdf\xa3", "Matroska/WebM", "matroska", _VIDEO),
        (rb"RIFF....AVI[ X]", "AVI", "avi", _VIDEO),
        (rb"GIF8[79]a", "GIF", "gif", _EITHER),
        (rb"OggS\x00", "Ogg", "ogg", _VIDEO),
        (rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9\x00\xaa\x00\x62\xce\x6c", "ASF/WMV", "asf", _VIDEO),
        (rb"FLV\x01", "FLV", "flv", _VIDEO),
        (rb"\x00\x00\x01\xba", "MPEG-PS", "mpeg", _VIDEO),
        (rb"\xff\xd8\xff", "JPEG", "JPEG", _IMAGE),
        (rb"\x89PNG\r\n\x1a\n", "PNG", "PNG", _IMAGE),
        (rb"RIFF....WEBPVP8", "WebP", "WEBP", _IMAGE),
        (rb"BM....\x00\x00\x00\x00", "BMP", "BMP", _IMAGE),
        (rb"....ftyp(?!avi[fs]|hei[cfmsx]|hev[cmsx]|mi[fa][1fh]|msf1)", "MP4/MOV", "mov", _VIDEO),
        (rb"....(moov|mdat|free|skip|wide|pnot|styp|moof|sidx)", "MP4/MOV", "mov", _VIDEO),
        # A transport stream may begin inside a packet of 188, 192 or 204 bytes: three sync marks that far apart.
        (rb".{0,204}?\x47(.{187}\x47.{187}|.{191}\x47.{191}|.{203}\x47.{203})\x47", "MPEG-TS", "mpegts", _VIDEO),
    )
)  # fmt: skip

# Things people send by mistake; the name makes the refusal useful.
_REFUSED: tuple[tuple[re.Pattern[bytes], str], ...] = tuple(
    (re.compile(pattern, re.DOTALL | re.IGNORECASE), reason)
    for pattern, reason in (
        (rb"....ftyp", "a HEIF or AVIF picture; convert it to JPEG or PNG"),
        (rb"ID3|\xff[\xe2-\xff]|RIFF....WAVE|fLaC|#!AMR|ADIF", "an audio file; there is no video in it"),
        (rb"\x00\x00\x00?\x01[\x09\x27\x40\x42\x46\x47\x67\x68\xb3]", "a raw stream without times; put it into MP4"),
        (rb"\s*(#EXTM3U|ffconcat|<\?xml|<MPD|v=0|\[playlist\])", "a playlist that names other files; send the video"),
        (rb"\s*<(!doctype|html|head|body)", "a web page; check what the link returns"),
        (rb"PK\x03\x04|\x1f\x8b|7z\xbc\xaf|Rar!", "an archive; send the video itself"),
        (rb"%PDF", "a PDF document"),
        (rb"[\x09\x0a\x0d\x20-\x7e]+\Z", "text"),
    )
)  # fmt: skip


def sniff_container(head: bytes, kind: MediaKind) -> Container:
    """Name the container from the first HEAD_BYTES of a file.

    Raises UndecodableError for an empty file and UnsupportedMediaError for what is not taken as `kind`.
    """
    if not head:
        raise UndecodableError("the file is empty; send it again")
    for pattern, container in _SIGNATURES:
        if pattern.match(head):
            if kind in container.kinds:
                return container
            raise UnsupportedMediaError(
                f"this is {'an image' if kind == 'video' else 'a video'} ({container.name}); send it as "
                f"{'an image' if kind == 'video' else 'a video'}"
            )
    taken = VIDEO_CONTAINERS if kind == "video" else IMAGE_CONTAINERS
    reason = next((reason for pattern, reason in _REFUSED if pattern.match(head)), "no container that is known here")
    raise UnsupportedMediaError(f"this is {reason}. Taken as {kind}: {taken}")


def is_picture(head: bytes) -> bool:
    """Whether these first bytes are of a picture alone; an animated GIF is not one."""
    return any(pattern.match(head) and container.kinds == _IMAGE for pattern, container in _SIGNATURES)
