"""What passes between the engine and a child that decodes a stream: the job, pieces of media in, frames out.

Owns the bytes on both pipes; knows nothing of processes, codecs or sampling. Media goes in as pieces, each a head and
its bytes. Frames come out as a length, a record in JSON, and a frame's pixels. The last word, a report, comes over the
job's own channel.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal

import msgspec

from vision.frames import BackendName
from vision.limits import DecodeLimits
from vision.request import DecodeRequest

StreamFormat = Literal["auto", "image", "jpeg", "png", "webp", "video", "mp4", "webm", "mpegts"]
PICTURE_FORMATS = ("image", "jpeg", "png", "webp")
DropReason = Literal["sampled_out", "duplicate", "decode_error"]

_PIECE = struct.Struct("<qdQ")  # seq, seconds, bytes that follow
_LENGTH = struct.Struct("<I")
PIECE_BYTES, LENGTH_BYTES = _PIECE.size, _LENGTH.size
MAX_RECORD_BYTES = 1 << 20
MAX_FRAME_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamJob:
    """How a stream is to be decoded. request: resizing, and what pictures are turned into; its sampling is not read.

    fps: pictures looked at for each second. window_frames: how many are read together, by which the size is chosen.
    whole: the input is a whole file, not pieces. backend is not chosen: streams are PyAV's.
    """

    request: DecodeRequest
    limits: DecodeLimits
    fps: float
    window_frames: int
    whole: bool
    format: StreamFormat = "auto"
    backend: BackendName = "pyav"


class FrameRecord(msgspec.Struct, frozen=True, kw_only=True, tag="frame"):
    """A frame that is looked at; 3 * height * width bytes of RGB planes follow. place: its point on the grid of times.
    time_s counts from the stream's first picture, which came at origin_s: 0 where the times are a container's own."""

    seq: int
    place: int
    time_s: float
    origin_s: float
    height: int
    width: int
    source_size: tuple[int, int]


class SkipRecord(msgspec.Struct, frozen=True, kw_only=True, tag="skip"):
    """Pictures that are not looked at, and why."""

    seqs: tuple[int, ...]
    reason: DropReason


class StreamReport(msgspec.Struct, frozen=True, kw_only=True, tag="stream"):
    """The stream is over: how many pictures it had."""

    pictures: int
    codec: str
    container: str


Record = FrameRecord | SkipRecord
_records = msgspec.json.Decoder(Record)


def pack_piece(data: bytes, *, seq: int, time_s: float) -> bytes:
    return _PIECE.pack(seq, time_s, len(data)) + data


def unpack_piece(head: bytes) -> tuple[int, float, int]:
    """(seq, seconds, bytes that follow) of a head of PIECE_BYTES."""
    seq, time_s, size = _PIECE.unpack(head)
    return seq, time_s, size


def pack_record(record: Record) -> bytes:
    data = msgspec.json.encode(record)
    return _LENGTH.pack(len(data)) + data


def take_record(buffer: bytearray) -> tuple[Record, bytes] | None:
    """The first whole record in the buffer with its pixels, taken out of it; None while it is not all there.

    Raises ValueError for bytes that no child of ours writes.
    """
    if len(buffer) < LENGTH_BYTES:
        return None
    (size,) = _LENGTH.unpack_from(buffer)
    if size > MAX_RECORD_BYTES:
        raise ValueError("a record is too long")
    start = LENGTH_BYTES + size
    if len(buffer) < start:
        return None
    record: Record = _records.decode(memoryview(buffer)[LENGTH_BYTES:start])
    pixels = 3 * record.height * record.width if isinstance(record, FrameRecord) else 0
    if pixels > MAX_FRAME_BYTES or (isinstance(record, FrameRecord) and min(record.height, record.width) < 1):
        raise ValueError("a frame's size cannot be")
    if len(buffer) < start + pixels:
        return None
    taken = bytes(memoryview(buffer)[start : start + pixels])
    del buffer[: start + pixels]
    return record, taken
