"""A stream's child, from the side that feeds it: pieces in, frames and skips out, as far as both pipes allow.

Owns the pipes, what waits to be written to them, and the child's end. Knows nothing of codecs or of what frames are
for. One thread at a time calls it; it never blocks but in `pump`, which waits no longer than it is told.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import threading
import time
from collections import deque
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from vision.cage import DecodePool, open_source, raise_report
from vision.errors import DecodeCrashedError, DecodeDeadlineError
from vision.request import FailureReport, MediaBytes, MediaFile
from vision.stream_protocol import (
    MAX_FRAME_BYTES,
    FrameRecord,
    SkipRecord,
    StreamJob,
    StreamReport,
    pack_piece,
    take_record,
)
from vision.warden import Child, ForkServer, Watch

READ_BYTES = 1 << 18
PIPE_BYTES = 1 << 20
REPORT_WAIT_S = 5.0
NEVER_SENSE = "the stream could not be decoded: the decoder gave an answer that cannot be"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamFrame:
    """A frame that is looked at: pixels (3, H, W) uint8; the record says when and where."""

    record: FrameRecord
    pixels: npt.NDArray[np.uint8]


StreamEvent = StreamFrame | SkipRecord | StreamReport


def open_stream(
    pool: DecodePool, job: StreamJob, source: MediaBytes | MediaFile | None, cancel: threading.Event
) -> LiveDecoder:
    """A stream's child beside the pool's own: streams take no worker's place, their number is their owner's to bound.

    source: a whole file; None: what will be fed. Raises a MediaError.
    """
    watch = pool.watch(cancel)
    if source is None:
        return LiveDecoder(pool.server, job, watch)
    with open_source(source, job.limits) as fd:  # the child has a descriptor of its own
        return LiveDecoder(pool.server, job, watch, whole_fd=fd)


class LiveDecoder:
    """One stream's child. `whole_fd`: a file to be read instead of pieces, which stays the caller's."""

    def __init__(self, server: ForkServer, job: StreamJob, watch: Watch, *, whole_fd: int | None = None) -> None:
        """Raises DecodeCrashedError when no child starts, DecodeCancelledError."""
        self._job, self._watch = job, watch
        self._pending: deque[memoryview] = deque()
        self._received = bytearray()
        self._moved = time.monotonic()
        self.pending_bytes = 0
        self._into = -1
        frames, out_fd = os.pipe()
        self._frames = frames
        try:
            child_in = whole_fd if whole_fd is not None else self._open_input()
            try:
                self._child = self._start(server, child_in, out_fd)
            finally:
                if whole_fd is None:
                    os.close(child_in)
        except BaseException:
            self._close_pipes()
            raise
        finally:
            os.close(out_fd)
        self._ends_after = whole_fd is not None  # nothing more is to come once what is pending is written
        os.set_blocking(self._frames, False)

    def _open_input(self) -> int:
        child_in, self._into = os.pipe()
        os.set_blocking(self._into, False)
        with contextlib.suppress(OSError):  # an ordinary pipe does, too
            fcntl.fcntl(self._into, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        return child_in

    def _start(self, server: ForkServer, child_in: int, out_fd: int) -> Child:
        child = server.start(self._job, child_in, out_fd, self._watch)
        if child is None:
            raise DecodeCrashedError("the stream could not be decoded: its decoder died while starting")
        return child

    def feed(self, data: bytes, *, seq: int, time_s: float) -> None:
        piece = memoryview(pack_piece(data, seq=seq, time_s=time_s))
        self._pending.append(piece)
        self.pending_bytes += len(piece)

    def end_input(self) -> None:
        """Nothing more will be fed."""
        self._ends_after = True

    def pump(self, timeout_s: float, *, wake_fd: int, taking: bool) -> list[StreamEvent]:
        """Wait until something can be done, at most `timeout_s` or until `wake_fd` is readable; do it.

        taking: whether frames are wanted; without, the child comes to a stop by itself. The last event is a
        StreamReport. Raises a MediaError when the stream cannot go on.
        """
        self._watch.check()
        self._close_finished_input()
        poller = select.poll()
        poller.register(wake_fd, select.POLLIN)
        if taking:
            poller.register(self._frames, select.POLLIN)
        if self._pending:
            poller.register(self._into, select.POLLOUT)
        ready = {fd for fd, _ in poller.poll(timeout_s * 1000)}
        if self._pending and self._into in ready:
            self._write()
        events = self._read() if self._frames in ready else []
        self._check_progress(taking)
        return events

    def close(self) -> None:
        """End the child and let go of everything. May be called twice."""
        if self._frames >= 0:
            self._close_pipes()
            self._child.end()

    # ---------------------------------------------------------------------------------------------------- inside

    def _write(self) -> None:
        self._moved = time.monotonic()
        while self._pending:
            try:
                count = os.write(self._into, self._pending[0])
            except BlockingIOError:
                return
            except BrokenPipeError:  # it has ended; its report says why
                self._pending.clear()
                self.pending_bytes = 0
                return
            self.pending_bytes -= count
            if count < len(self._pending[0]):
                self._pending[0] = self._pending[0][count:]
                return
            self._pending.popleft()

    def _close_finished_input(self) -> None:
        if self._ends_after and not self._pending and self._into >= 0:
            os.close(self._into)
            self._into = -1

    def _read(self) -> list[StreamEvent]:
        try:
            data = os.read(self._frames, READ_BYTES)
        except BlockingIOError:
            return []
        self._moved = time.monotonic()
        if not data:
            return [self._read_report()]
        self._received += data
        events: list[StreamEvent] = []
        try:
            while (taken := take_record(self._received)) is not None:
                record, pixels = taken
                events.append(self._to_frame(record, pixels) if isinstance(record, FrameRecord) else record)
        except (ValueError, msgspec.MsgspecError) as error:
            raise DecodeCrashedError(NEVER_SENSE) from error
        if len(self._received) > MAX_FRAME_BYTES:
            raise DecodeCrashedError(NEVER_SENSE)
        return events

    def _to_frame(self, record: FrameRecord, pixels: bytes) -> StreamFrame:
        shape = (3, record.height, record.width)
        return StreamFrame(record=record, pixels=np.frombuffer(pixels, dtype=np.uint8).reshape(shape))

    def _read_report(self) -> StreamReport:
        try:
            answer = self._child.read_answer(time.monotonic() + REPORT_WAIT_S, self._watch)
            report: StreamReport | FailureReport = msgspec.json.decode(answer, type=StreamReport | FailureReport)
        except (msgspec.MsgspecError, TimeoutError) as error:
            raise DecodeCrashedError("the stream could not be decoded: the decoder died on it") from error
        if isinstance(report, FailureReport):
            raise_report(report)
        return report

    def _check_progress(self, taking: bool) -> None:
        """A child that has work and does none is stuck; one that waits for us or for more media is not."""
        has_work = bool(self._pending) or self._ends_after
        if not taking or not has_work:
            self._moved = time.monotonic()
        limit = self._job.limits.decode_timeout_s
        if time.monotonic() - self._moved > limit:
            raise DecodeDeadlineError(f"decoding a piece of the stream took longer than the limit of {limit:g} s")

    def _close_pipes(self) -> None:
        for fd in (self._frames, self._into):
            if fd >= 0:
                os.close(fd)
        self._frames = self._into = -1
