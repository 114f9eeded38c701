"""The life of one decoding child: take limits, read the job, decode, write frames, answer, end.

Runs only in a process forked by `vision.forkserver`. Knows nothing of the pool, of deadlines or of other jobs.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import pickle
import resource
import socket
import sys
import traceback
from pathlib import Path

import av.logging
import msgspec
import torch
from PIL import Image

from vision.color import Pixels
from vision.decode import decode_file
from vision.errors import MediaError, MediaTooLargeError
from vision.images import decode_pictures
from vision.limits import DecodeLimits
from vision.request import HELLO, DecodeRequest, FailureReport, FramesReport, Job, Report
from vision.resize import FixedSize
from vision.stream_child import decode_stream
from vision.stream_input import PieceReader
from vision.stream_protocol import Record, StreamJob, StreamReport, pack_record

MAX_OPEN_FILES = 64
STREAM_CPU_S = 6 * 3600  # the last wall: the parent ends a stream that no longer comes forward
OWN_FAULT = FailureReport(
    error="DecodeCrashedError", message="the media could not be decoded: the decoder failed on it"
)


class MemorySink:
    """Writes frames one after the other into a file descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._frame_bytes = 0

    def begin(self, num_frames: int, height: int, width: int) -> None:
        self._frame_bytes = 3 * height * width
        os.ftruncate(self._fd, 0)
        os.ftruncate(self._fd, num_frames * self._frame_bytes)

    def put(self, position: int, pixels: Pixels) -> None:
        view = memoryview(pixels.data).cast("B")
        written = 0
        while written < len(view):
            written += os.pwrite(self._fd, view[written:], position * self._frame_bytes + written)


class _Nowhere:
    """A sink for the warm-up."""

    def begin(self, num_frames: int, height: int, width: int) -> None:
        pass

    def put(self, position: int, pixels: Pixels) -> None:
        pass


def warm_up() -> None:
    """Do once, before any fork, what Python, torch and FFmpeg would do lazily in every child; start no thread."""
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    av.logging.set_level(None)
    # Our own limit on pixels is checked from the header, before any pixel is decoded.
    Image.MAX_IMAGE_PIXELS = None
    file = io.BytesIO()
    first, second = Image.new("P", (8, 8), 0), Image.new("P", (8, 8), 1)
    first.save(file, "GIF", save_all=True, append_images=[second], duration=100)
    file.seek(0)
    request = DecodeRequest(kind="video", resize=FixedSize(height=4, width=4))
    decode_file(file, request, limits=DecodeLimits(), sink=_Nowhere())


def run_job(job_fd: int, input_fd: int, output_fd: int) -> None:
    """Send a pidfd of ourselves (so that the parent can kill exactly us), then do the job and answer."""
    with socket.socket(fileno=job_fd) as channel:
        own_pidfd = os.pidfd_open(os.getpid())
        socket.send_fds(channel, [HELLO], [own_pidfd])
        os.close(own_pidfd)
        try:
            # Pickle is safe in this direction only: the job comes from our own parent. The answer goes back as JSON.
            job: Job | StreamJob = pickle.loads(_read_all(channel))
            report: Report | StreamReport = _answer(job, input_fd, output_fd)
        except Exception:
            traceback.print_exc(file=sys.stderr)
            report = OWN_FAULT
        channel.sendall(msgspec.json.encode(report))


def _answer(job: Job | StreamJob, input_fd: int, output_fd: int) -> Report | StreamReport:
    try:
        if isinstance(job, StreamJob):
            _take_limits(job.limits, cpu_s=STREAM_CPU_S)
            return _follow(job, input_fd, output_fd)
        _take_limits(job.limits, cpu_s=int(job.limits.decode_timeout_s) + 2)
        return _decode(job, input_fd, MemorySink(output_fd))
    except MediaError as error:
        param: str | None = getattr(error, "param", None)
        return FailureReport(error=type(error).__name__, message=error.message, param=param)
    except Exception as error:
        if not _is_memory_shortage(error):
            raise
        limit = job.limits.max_child_memory_bytes >> 20
        message = f"decoding this item needs more than the limit of {limit} MiB of memory; scale it down or cut it"
        return FailureReport(error=MediaTooLargeError.__name__, message=message)


def _follow(job: StreamJob, input_fd: int, output_fd: int) -> StreamReport:
    """Decode a stream to its end; frames go out as they come. A parent that no longer reads ends it."""

    def emit(record: Record, pixels: Pixels | None) -> None:
        for part in (pack_record(record), b"" if pixels is None else memoryview(pixels.data).cast("B")):
            view = memoryview(part)
            while view:
                view = view[os.write(output_fd, view) :]

    if not job.whole:
        return decode_stream(job, None, PieceReader(input_fd, job.limits.max_bytes), emit)
    with open(input_fd, "rb", closefd=False) as file:
        file.seek(0)
        return decode_stream(job, file, None, emit)


def _is_memory_shortage(error: Exception) -> bool:
    """Python, FFmpeg, torch and the kernel each say it in their own way."""
    return (
        isinstance(error, MemoryError)
        or getattr(error, "errno", None) in (errno.ENOMEM, errno.EFBIG)
        or (isinstance(error, RuntimeError) and "alloc" in str(error))
    )


def _decode(job: Job, input_fd: int, sink: MemorySink) -> FramesReport:
    with open(input_fd, "rb", closefd=False) as file:
        file.seek(0)
        if job.picture_sizes is None:
            return decode_file(file, job.request, limits=job.limits, sink=sink, backend=job.backend)
        pictures = [file.read(size) or b"" for size in job.picture_sizes]
        return decode_pictures(pictures, job.list_fps, job.request, limits=job.limits, sink=sink)


def _take_limits(limits: DecodeLimits, *, cpu_s: int) -> None:
    """Bound memory, processor time, open files and file size; dump no core; be the first to go when memory is short."""
    memory = _address_space_bytes() + limits.max_child_memory_bytes
    for kind, bound in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
        (resource.RLIMIT_FSIZE, limits.max_child_memory_bytes),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        allowed = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(kind, (allowed, allowed))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _address_space_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _read_all(channel: socket.socket) -> bytes:
    parts = []
    while part := channel.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)
