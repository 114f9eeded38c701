"""Decoding untrusted media in children that can be killed: the pool that the rest of the program calls.

Owns how many run at once, the anonymous memory that bytes go in and frames come back through, and what becomes of a
child's answer. Knows nothing of codecs. A killed child leaves nothing behind: all memory belongs to the parent and has
no name in any file system.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import NoReturn

import msgspec
import numpy as np
import numpy.typing as npt

from vision import errors
from vision.backends.protocol import check_backend
from vision.errors import (
    DecodeCrashedError,
    InvalidMediaOptionError,
    MediaError,
    UndecodableError,
)
from vision.frames import BackendName, VideoFrames
from vision.limits import DecodeLimits
from vision.request import (
    DecodeRequest,
    EncodedFrames,
    FailureReport,
    FramesReport,
    Job,
    MediaBytes,
    MediaFile,
    MediaSource,
    Report,
)
from vision.warden import ForkServer, Watch

DEFAULT_LIMITS = DecodeLimits()
SLOT_POLL_S = 0.05
MAX_MESSAGE_CHARS = 400


class DecodePool:
    """Decodes media items in children, at most `workers` at a time; callable from any number of threads.

    limits: what an item may cost where its request does not say.
    backend: what decodes clips; what it refuses, PyAV decodes, and the frames say so.
    The fork server is started at once and gets ready in the background; the first item waits for it.
    """

    def __init__(
        self, limits: DecodeLimits = DEFAULT_LIMITS, workers: int = 2, *, backend: BackendName = "pyav"
    ) -> None:
        """Raises ValueError for no workers, and for a backend that is not known or not installed."""
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        self.limits = limits
        self._backend = check_backend(backend)
        self._workers = workers
        self._slots = threading.Semaphore(workers)
        self._closed = threading.Event()
        self._server = ForkServer(preload=(f"vision.backends.{backend}",))

    def decode(self, source: MediaSource, request: DecodeRequest, cancel: threading.Event | None = None) -> VideoFrames:
        """Decode one item; blocks until it is done, and before that until a worker is free.

        Raises a MediaError: see vision/errors.py. Setting `cancel` kills the child within about 50 ms.
        """
        job = _plan_job(source, request, self.limits, self._backend)
        watch = self.watch(cancel)
        with self._slot(watch), open_source(source, job.limits) as input_fd, _anonymous_memory("frames") as output_fd:
            answer = self._server.run(job, input_fd, output_fd, watch)
            return _read_frames(_parse(answer), job, output_fd)

    @property
    def server(self) -> ForkServer:
        return self._server

    @property
    def is_sealed(self) -> bool | None:
        """Whether the kernel refuses sockets and new programs to children; None until that is known."""
        return self._server.is_sealed

    def watch(self, cancel: threading.Event | None) -> Watch:
        return Watch(cancel=cancel, closed=self._closed)

    def close(self) -> None:
        """Cancel what runs, wait for its end, and stop the fork server. May be called twice."""
        self._closed.set()
        for _ in range(self._workers):
            self._slots.acquire()
        self._server.close()
        for _ in range(self._workers):
            self._slots.release()

    def __enter__(self) -> DecodePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _slot(self, watch: Watch) -> Iterator[None]:
        while not self._slots.acquire(timeout=SLOT_POLL_S):
            watch.check()
        try:
            watch.check()
            yield
        finally:
            self._slots.release()


def _plan_job(source: MediaSource, request: DecodeRequest, pool_limits: DecodeLimits, backend: BackendName) -> Job:
    """Check what can be checked without a child; lower the sampling bounds to the limit on frames."""
    limits = request.limits or pool_limits
    sampling = request.sampling
    if sampling.max_frames > limits.max_frames:
        sampling = replace(
            sampling, max_frames=limits.max_frames, min_frames=min(sampling.min_frames, limits.max_frames)
        )
    request = replace(request, sampling=sampling, limits=None)
    if not isinstance(source, EncodedFrames):
        return Job(request=request, limits=limits, backend=backend)
    limits.check_frame_list(len(source.frames))
    sizes = tuple(len(frame) for frame in source.frames)
    return Job(request=request, limits=limits, picture_sizes=sizes, list_fps=source.fps)


@contextlib.contextmanager
def open_source(source: MediaSource, limits: DecodeLimits) -> Iterator[int]:
    """A readable descriptor of the item's bytes."""
    match source:
        case MediaFile(path=path):
            with _open_regular_file(path, limits) as fd:
                yield fd
        case MediaBytes(data=data):
            with _filled_memory((data,), limits) as fd:
                yield fd
        case EncodedFrames(frames=frames):
            with _filled_memory(frames, limits) as fd:
                yield fd


@contextlib.contextmanager
def _open_regular_file(path: str, limits: DecodeLimits) -> Iterator[int]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise UndecodableError("the media file can no longer be opened; upload it again") from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise UndecodableError("the media is not a regular file")
        limits.check_bytes(status.st_size)
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _filled_memory(parts: tuple[bytes, ...], limits: DecodeLimits) -> Iterator[int]:
    limits.check_bytes(sum(len(part) for part in parts))
    with _anonymous_memory("media") as fd:
        for part in parts:
            view = memoryview(part)
            while view:
                view = view[os.write(fd, view) :]
        yield fd


@contextlib.contextmanager
def _anonymous_memory(label: str) -> Iterator[int]:
    fd = os.memfd_create(f"evserve-{label}", os.MFD_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _parse(answer: bytes) -> FramesReport:
    """Read a child's answer as data, never as objects; raise the error it reports."""
    try:
        report: Report = msgspec.json.decode(answer, type=Report)
    except msgspec.MsgspecError as error:
        raise DecodeCrashedError("the media could not be decoded: the decoder died on it") from error
    if isinstance(report, FailureReport):
        raise_report(report)
    return report


def raise_report(report: FailureReport) -> NoReturn:
    """Raise the error that a child reports, believing nothing but its name."""
    raise _to_error(report)


def _to_error(report: FailureReport) -> MediaError:
    message = report.message[:MAX_MESSAGE_CHARS]
    match report.error:
        case "InvalidMediaOptionError":
            return InvalidMediaOptionError(message, param=report.param or "media")
        case "UnsupportedMediaError" | "UndecodableError" | "MediaTooLargeError":
            kind: type[MediaError] = getattr(errors, report.error)
            return kind(message)
        case _:
            return DecodeCrashedError(message)


def _read_frames(report: FramesReport, job: Job, output_fd: int) -> VideoFrames:
    """Copy the frames out of the child's memory, believing nothing it said about their size."""
    num_frames = len(report.times_s)
    expected = num_frames * 3 * report.height * report.width
    plausible = (
        1 <= num_frames <= job.request.sampling.max_frames
        and num_frames == len(report.frame_indices)
        and min(report.height, report.width) >= 1
        and expected == os.fstat(output_fd).st_size <= job.limits.max_child_memory_bytes
    )
    if not plausible:
        raise DecodeCrashedError("the media could not be decoded: the decoder gave an answer that cannot be")
    return VideoFrames(
        kind=job.request.kind,
        pixels=_copy_out(output_fd, (num_frames, 3, report.height, report.width)),
        times_s=report.times_s, frame_indices=report.frame_indices, duration_s=report.duration_s,
        source_fps=report.source_fps, source_size=report.source_size, codec=report.codec,
        container=report.container, num_frames=report.num_frames, num_broken=report.num_broken,
        backend=report.backend, backend_reason=report.backend_reason,
    )  # fmt: skip


def _copy_out(fd: int, shape: tuple[int, int, int, int]) -> npt.NDArray[np.uint8]:
    """A copy costs little and leaves no mapping (nor descriptor) that lives as long as the frames do."""
    pixels = np.empty(shape, dtype=np.uint8)
    view = memoryview(pixels.data).cast("B")
    done = 0
    while done < len(view):
        count = os.preadv(fd, [view[done:]], done)
        if count == 0:
            raise DecodeCrashedError("the media could not be decoded: the decoder took its frames back")
        done += count
    return pixels
