"""Streams are decoded while they arrive, in a child: the frames are those of the whole file, however its bytes come."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from tests.clips import make_clip, make_image, read_numbers
from vision.cage import DecodePool
from vision.errors import DecodeCancelledError, MediaError, UndecodableError, UnsupportedMediaError
from vision.limits import DecodeLimits
from vision.request import DecodeRequest, MediaBytes
from vision.resize import FixedSize
from vision.stream_cage import LiveDecoder, StreamEvent, StreamFrame, open_stream
from vision.stream_protocol import SkipRecord, StreamFormat, StreamJob, StreamReport
from vision.stream_times import GridSampler

FRAGMENTED = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}
STREAMS = {
    "mp4": {"container": "mp4", "container_options": FRAGMENTED, "options": {"bf": "2", "g": "12"}},
    "webm": {"container": "webm", "codec": "libvpx-vp9"},
    "mpegts": {"container": "mpegts", "options": {"bf": "2", "g": "12"}},
}


@pytest.fixture(scope="module")
def pool() -> Iterator[DecodePool]:
    with DecodePool(DecodeLimits(decode_timeout_s=20.0)) as pool:
        yield pool


def job(*, whole: bool = False, fps: float = 5.0, format: StreamFormat = "auto") -> StreamJob:
    request = DecodeRequest(kind="video", resize=FixedSize(height=96, width=128))
    return StreamJob(
        request=request,
        limits=DecodeLimits(decode_timeout_s=20.0),
        fps=fps,
        window_frames=4,
        whole=whole,
        format=format,
    )


def drain(decoder: LiveDecoder, *, until: int | None = None) -> list[StreamEvent]:
    """Events to the report, or until so many frames have come."""
    events: list[StreamEvent] = []
    wake = os.eventfd(0, os.EFD_NONBLOCK)
    deadline = time.monotonic() + 60
    try:
        while not any(isinstance(event, StreamReport) for event in events):
            assert time.monotonic() < deadline
            events += decoder.pump(0.1, wake_fd=wake, taking=True)
            if until is not None and sum(isinstance(event, StreamFrame) for event in events) >= until:
                break
    finally:
        os.close(wake)
    return events


def follow(
    pool: DecodePool, wanted: StreamJob, pieces: Sequence[bytes], times: Sequence[float] = ()
) -> list[StreamEvent]:
    decoder = open_stream(pool, wanted, None, threading.Event())
    try:
        for seq, piece in enumerate(pieces):
            decoder.feed(piece, seq=seq, time_s=times[seq] if times else 0.0)
        decoder.end_input()
        return drain(decoder)
    finally:
        decoder.close()


def frames_of(events: Sequence[StreamEvent]) -> list[StreamFrame]:
    return [event for event in events if isinstance(event, StreamFrame)]


def skipped(events: Sequence[StreamEvent]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for event in events:
        if isinstance(event, SkipRecord):
            found.setdefault(event.reason, []).extend(event.seqs)
    return found


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_gives_the_frames_of_the_file(pool: DecodePool, name: str) -> None:
    """The same frames bit for bit, whole or in pieces of any size; every picture is looked at or named once."""
    data = make_clip(frames=50, fps=25, **STREAMS[name])
    decoder = open_stream(pool, job(whole=True), MediaBytes(data=data), threading.Event())
    try:
        whole = drain(decoder)
    finally:
        decoder.close()
    assert read_numbers([frame.pixels for frame in frames_of(whole)]) == list(range(0, 50, 5))
    assert [frame.record.place for frame in frames_of(whole)] == list(range(10))
    for size in (701, 1 << 20):
        pieces = follow(pool, job(), cut(data, size))
        for ours, theirs in zip(frames_of(pieces), frames_of(whole), strict=True):
            assert ours.record == theirs.record
            assert np.array_equal(ours.pixels, theirs.pixels)
        heard = [frame.record.seq for frame in frames_of(pieces)] + skipped(pieces)["sampled_out"]
        assert sorted(heard) == list(range(50))
        assert isinstance(pieces[-1], StreamReport) and pieces[-1].pictures == 50


@pytest.mark.parametrize("name", STREAMS)
def test_frames_come_while_the_stream_arrives(pool: DecodePool, name: str) -> None:
    """With two thirds of the bytes there, frames of the first third are out; the rest was not needed for them."""
    data = make_clip(frames=75, fps=25, **STREAMS[name])
    decoder = open_stream(pool, job(), None, threading.Event())
    try:
        for piece in cut(data[: len(data) * 2 // 3], 4096):
            decoder.feed(piece, seq=0, time_s=0.0)
        events = drain(decoder, until=5)
    finally:
        decoder.close()
    assert read_numbers([frame.pixels for frame in frames_of(events)])[:5] == [0, 5, 10, 15, 20]


def test_pictures_are_taken_one_by_one(pool: DecodePool) -> None:
    """Half a picture leaves its place to the next; a time that does not rise is a duplicate; each is named once."""
    pictures = [make_image(picture=None, image_format="JPEG", size=(96, 128)) for _ in range(6)]
    pictures[2] = pictures[2][: len(pictures[2]) // 3]
    events = follow(pool, job(fps=2.0), pictures, [10.0, 10.5, 11.0, 11.2, 11.2, 11.9])
    assert [(frame.record.seq, frame.record.place) for frame in frames_of(events)] == [(0, 0), (1, 1), (3, 2), (5, 4)]
    assert frames_of(events)[0].record.origin_s == 10.0
    assert skipped(events) == {"decode_error": [2], "duplicate": [4]}


@pytest.mark.parametrize(
    ("pieces", "format", "error", "words"),
    [
        ([b"\x00\x01nonsense" * 300], "auto", UnsupportedMediaError, "no container"),
        ([b"x"] * 2000, "video", UnsupportedMediaError, "text"),
        ([make_image(image_format="PNG")], "jpeg", UnsupportedMediaError, "format is jpeg and this is PNG"),
        (cut(make_clip(frames=8, container="webm", codec="libvpx"), 999), "mp4", UnsupportedMediaError, "is mp4"),
        (cut(make_clip(frames=300), 9999), "auto", UndecodableError, "its index comes last"),
        (cut(make_clip(frames=8, container="avi", codec="mpeg4"), 999), "auto", UnsupportedMediaError, "send fragment"),
        ([b"\xff\xd8\xff" + bytes(200)] * 20, "image", UndecodableError, "16 pictures in a row"),
    ],
)
def test_what_cannot_be_read_says_so(
    pool: DecodePool, pieces: list[bytes], format: StreamFormat, error: type[MediaError], words: str
) -> None:
    with pytest.raises(error, match=words):
        follow(pool, job(format=format), pieces, [float(number) for number in range(len(pieces))])


def test_a_cancelled_stream_leaves_no_child(pool: DecodePool) -> None:
    before = len(os.listdir("/proc/self/fd"))
    cancel = threading.Event()
    decoder = open_stream(pool, job(), None, cancel)
    cancel.set()
    with pytest.raises(DecodeCancelledError):
        drain(decoder)
    decoder.close()
    decoder.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_worked_example_of_the_grid() -> None:
    times = (0, 0.4, 0.52, 0.9, 1.3, 2.6)
    exact, early = GridSampler(fps=2, slack=0.0), GridSampler(fps=2, slack=0.25)
    assert [exact.take(time_s) for time_s in times] == [0, None, 1, None, 2, 5]
    assert [early.take(time_s) for time_s in times[:3]] == [0, 1, None]
