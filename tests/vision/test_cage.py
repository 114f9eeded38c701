"""Children decode, are bounded, can be killed, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.clips import make_audio, make_clip, make_image, read_numbers
from tests.vision.fakes import Crashing, Faulty, Greedy, Huge, SameSize, Stuck
from tests.vision.sinks import decode
from vision.cage import DecodePool
from vision.errors import (
    DecodeCancelledError,
    DecodeCrashedError,
    DecodeDeadlineError,
    InvalidMediaOptionError,
    MediaError,
    MediaTooLargeError,
    UndecodableError,
    UnsupportedMediaError,
)
from vision.limits import DecodeLimits
from vision.request import DecodeRequest, EncodedFrames, MediaBytes, MediaFile
from vision.resize import ResizePolicy, VideoSmartResize
from vision.sampling import SamplingPolicy

CLIP = make_clip(frames=12)


def request(resize: ResizePolicy | None = None, **limits: float) -> DecodeRequest:
    return DecodeRequest(
        kind="video", resize=resize or SameSize(), limits=DecodeLimits(**limits) if limits else None,  # type: ignore[arg-type]
    )  # fmt: skip


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def server_pid(pool: DecodePool) -> int:
    return pool._server._process._process.pid


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll: what is waited for happens in another process."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)


def test_children_give_what_decoding_here_gives(pool: DecodePool) -> None:
    """The cage changes nothing: same pixels, same report."""
    policy = VideoSmartResize(min_pixels=4096, max_pixels=100_000)
    report, pixels = decode(CLIP, resize=policy)
    frames = pool.decode(MediaBytes(data=CLIP), request(policy))
    assert np.array_equal(frames.pixels, pixels)
    assert (frames.times_s, frames.duration_s, frames.source_fps) == (
        report.times_s, report.duration_s, report.source_fps,
    )  # fmt: skip
    assert (frames.kind, frames.codec, frames.container, frames.source_size) == ("video", "h264", "MP4/MOV", (96, 128))
    assert frames.pixels.flags.writeable
    assert frames.pixels.flags.c_contiguous


def test_sources_of_every_kind(pool: DecodePool, tmp_path: Path) -> None:
    path = tmp_path / "видео %03d -y $(id).mp4"
    path.write_bytes(CLIP)
    assert read_numbers(pool.decode(MediaFile(path=str(path)), request()).pixels) == list(range(12))
    pictures = tuple(make_image(image_format="JPEG") for _ in range(3))
    assert len(pool.decode(EncodedFrames(frames=pictures, fps=2.0), request()).pixels) == 3
    image = DecodeRequest(kind="image", resize=SameSize())
    assert pool.decode(MediaBytes(data=make_image()), image).kind == "image"


def test_many_threads_at_once(pool: DecodePool) -> None:
    """Each caller gets its own clip, whoever runs beside it."""
    clips = [make_clip(frames=3 + number) for number in range(6)]
    with ThreadPoolExecutor(6) as threads:
        results = list(threads.map(lambda data: pool.decode(MediaBytes(data=data), request()), clips))
    assert [len(frames.pixels) for frames in results] == [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"", UndecodableError, "empty"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", UnsupportedMediaError, "a playlist"),
        (b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:9/x.ts\n", UnsupportedMediaError, "a playlist"),
        (b"just a line of text", UnsupportedMediaError, "text"),
        (CLIP[: len(CLIP) // 2], UndecodableError, "damaged"),
        (make_audio(), UndecodableError, "no video stream"),
    ],
)
def test_errors_cross_the_wall(pool: DecodePool, data: bytes, error: type[MediaError], message: str) -> None:
    with pytest.raises(error, match=message):
        pool.decode(MediaBytes(data=data), request())


def test_options_are_refused_by_name(pool: DecodePool) -> None:
    late = DecodeRequest(kind="video", resize=SameSize(), sampling=SamplingPolicy(start_s=99.0))
    with pytest.raises(InvalidMediaOptionError) as caught:
        pool.decode(MediaBytes(data=CLIP), late)
    assert caught.value.param == "start_s"


def test_the_deadline_kills(pool: DecodePool) -> None:
    with pytest.raises(DecodeDeadlineError, match=r"the limit of 0\.2 s"):
        pool.decode(MediaBytes(data=CLIP), request(Stuck(), decode_timeout_s=0.2))
    wait_until(lambda: children_of(server_pid(pool)) == [])


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT])
def test_a_crash_is_this_items_alone(pool: DecodePool, number: int) -> None:
    with pytest.raises(DecodeCrashedError, match="could not be decoded"):
        pool.decode(MediaBytes(data=CLIP), request(Crashing(number=number)))
    assert len(pool.decode(MediaBytes(data=CLIP), request()).pixels) == 12


def test_our_own_faults_tell_nothing(pool: DecodePool) -> None:
    with pytest.raises(DecodeCrashedError) as caught:
        pool.decode(MediaBytes(data=CLIP), request(Faulty()))
    assert "secret" not in caught.value.message


def test_cancelling_kills(pool: DecodePool) -> None:
    cancel = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pool.decode, MediaBytes(data=CLIP), request(Stuck()), cancel)
        wait_until(lambda: len(children_of(server_pid(pool))) == 1)
        cancel.set()
        with pytest.raises(DecodeCancelledError):
            waiting.result(timeout=60)
    wait_until(lambda: children_of(server_pid(pool)) == [])


def test_cancelling_while_waiting_for_a_worker(pool: DecodePool) -> None:
    """Back pressure: a third item waits for the first two, and can be cancelled there."""
    first, third = threading.Event(), threading.Event()
    with ThreadPoolExecutor(3) as threads:
        stuck = [threads.submit(pool.decode, MediaBytes(data=CLIP), request(Stuck()), first) for _ in range(2)]
        wait_until(lambda: len(children_of(server_pid(pool))) == 2)
        waiting = threads.submit(pool.decode, MediaBytes(data=CLIP), request(), third)
        third.set()
        with pytest.raises(DecodeCancelledError):
            waiting.result(timeout=60)
        assert len(children_of(server_pid(pool))) == 2
        first.set()
        for future in stuck:
            with pytest.raises(DecodeCancelledError):
                future.result(timeout=60)


@pytest.mark.parametrize("policy", [Greedy(), Huge()])
def test_memory_is_bounded(pool: DecodePool, policy: ResizePolicy) -> None:
    with pytest.raises(MediaTooLargeError, match="512 MiB of memory"):
        pool.decode(MediaBytes(data=CLIP), request(policy, max_child_memory_bytes=512 << 20))


def test_bytes_are_bounded(pool: DecodePool, tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(CLIP)
    few = request(max_bytes=len(CLIP) - 1)
    for source in (MediaBytes(data=CLIP), MediaFile(path=str(path)), EncodedFrames(frames=(CLIP[:-1], b"xx"))):
        with pytest.raises(MediaTooLargeError, match=f"the limit is {len(CLIP) - 1}"):
            pool.decode(source, few)


def test_frames_are_bounded_by_lowering_the_rate(pool: DecodePool) -> None:
    frames = pool.decode(MediaBytes(data=CLIP), request(max_frames=3))
    assert frames.frame_indices[0] == 0
    assert frames.frame_indices[-1] == 11
    assert len(frames.pixels) == 3


def test_only_regular_files_are_opened(pool: DecodePool, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "missing.mp4", Path("/dev/zero")):
        with pytest.raises(UndecodableError) as caught:
            pool.decode(MediaFile(path=str(path)), request())
        assert str(path) not in caught.value.message


def test_nothing_is_left(pool: DecodePool, tmp_path: Path) -> None:
    """After good items, bad ones, crashes, deadlines and cancels: descriptors, children and files are as before."""
    cancelled = threading.Event()
    cancelled.set()
    jobs: list[tuple[bytes, DecodeRequest, threading.Event | None]] = [
        (CLIP, request(), None),
        (b"", request(), None),
        (CLIP[:500], request(), None),
        (CLIP, request(Crashing()), None),
        (CLIP, request(Stuck(), decode_timeout_s=0.05), None),
        (CLIP, request(Huge(), max_child_memory_bytes=256 << 20), None),
        (CLIP, request(), cancelled),
    ]

    def run_all() -> None:
        for data, how, cancel in jobs:
            try:
                pool.decode(MediaBytes(data=data), how, cancel)
            except MediaError:
                continue

    run_all()
    ours, theirs = open_descriptors(), len(os.listdir(f"/proc/{server_pid(pool)}/fd"))
    shared = sorted(os.listdir("/dev/shm"))
    for _ in range(3):
        run_all()
    wait_until(lambda: open_descriptors() == ours)
    wait_until(lambda: children_of(server_pid(pool)) == [])
    wait_until(lambda: len(os.listdir(f"/proc/{server_pid(pool)}/fd")) == theirs)
    assert sorted(os.listdir("/dev/shm")) == shared


def test_closing_cancels_what_runs() -> None:
    before = open_descriptors()
    pool = DecodePool(workers=1)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(pool.decode, MediaBytes(data=CLIP), request(Stuck()))
        wait_until(lambda: len(children_of(server_pid(pool))) == 1)
        server = server_pid(pool)
        pool.close()
        with pytest.raises(DecodeCancelledError, match="stopping"):
            running.result(timeout=60)
    assert not Path(f"/proc/{server}").exists()
    with pytest.raises(DecodeCancelledError):
        pool.decode(MediaBytes(data=CLIP), request())
    pool.close()
    assert open_descriptors() == before


def test_a_pool_needs_a_worker() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        DecodePool(workers=0)
