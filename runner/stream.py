"""One stream, from what was sent to pooled sequences: its thread, its child and its bounded buffers. Owns the order of
its stages and what becomes of every frame; knows no sockets and never touches the model.

Media waits in the inbox until the child takes it, frames wait until windows do, and windows until their vectors are
made: each place is bounded, and what happens when frames wait in vain is the request's to say (`overload`).
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from runner.admission import Admission
from runner.errors import RequestCancelled
from runner.ingest import decode_source, translate_media_error
from runner.items import MediaItem
from runner.pooling import Pooled
from runner.prompt import Prompt
from runner.requests import Message
from runner.sequence import Sequence
from runner.stream_messages import (
    DropReason,
    FramesDropped,
    OpenStream,
    StreamData,
    StreamEnd,
    StreamEnded,
    StreamOpened,
    StreamTaken,
    WindowLaid,
)
from runner.stream_options import StreamSettings, settle_stream
from runner.stream_part import PieceKind, StreamPart
from vision.cage import DecodePool
from vision.containers import HEAD_BYTES, is_picture
from vision.errors import DecodeCancelledError, MediaError
from vision.request import EncodedFrames, MediaBytes, MediaFile
from vision.stream_cage import LiveDecoder, open_stream
from vision.stream_protocol import PICTURE_FORMATS, StreamJob

DOZE_S = 0.2
MAX_DECODER_BYTES = 1 << 20  # waiting to be written to the child
WINDOWS_IN_FLIGHT = 2  # laid out and without their vector


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDoor:
    """What a stream is given by the engine around it. prepare: do beforehand what the model's thread need not do.
    post: hand a sequence to that thread."""

    admission: Admission
    pool: DecodePool
    send: Callable[[Message], None]
    prepare: Callable[[list[Sequence]], None]
    post: Callable[[list[Sequence]], None]
    next_arrival: Callable[[], int]
    max_frames: int


class Stream:
    """`feed` and `cancel` are called from other threads; `run` is the stream's own thread."""

    def __init__(self, request: OpenStream, door: StreamDoor) -> None:
        self.request, self._door = request, door
        self.cancelled = threading.Event()
        self._inbox: deque[StreamData | StreamEnd] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._in_flight = 0
        self._windows = 0
        self._is_closed = False

    # ---------------------------------------------------------------------------------------------- other threads

    def feed(self, message: StreamData | StreamEnd) -> None:
        self._inbox.append(message)
        self._stir()

    def cancel(self) -> None:
        self.cancelled.set()
        self._stir()

    def _stir(self) -> None:
        with self._lock:
            if not self._is_closed:
                os.eventfd_write(self._wake, 1)

    def _finish_window(self) -> None:
        with self._lock:
            self._in_flight -= 1
        self._stir()

    # --------------------------------------------------------------------------------------------- its own thread

    def run(self) -> None:
        """Until cancelled, or the end of a source. Raises RequestError, RequestCancelled."""
        try:
            settings = settle_stream(self.request, self._door.admission, max_frames=self._door.max_frames)
            if self.request.source is not None:
                self._run_part(settings, self._open_source(settings), "bytes")  # its pictures are nobody's numbers
                return
            self.tell_opened(settings)
            while True:
                kind = self._await_media()
                self._run_part(settings, self._open_decoder(settings, None, kind), kind)
        except DecodeCancelledError as error:
            raise RequestCancelled from error
        except MediaError as error:
            raise translate_media_error(error) from error
        finally:
            with self._lock:
                self._is_closed = True
                os.close(self._wake)

    def _await_media(self) -> PieceKind:
        """What comes next is pictures or a container. Between two parts nothing is held but what is in the inbox."""
        while True:
            if self._inbox and isinstance(first := self._inbox[0], StreamData):
                format = self.request.format
                is_named = format in PICTURE_FORMATS or (format == "auto" and is_picture(first.data[:HEAD_BYTES]))
                return "picture" if is_named else "bytes"
            if self._inbox:
                self._inbox.popleft()  # an end of nothing
                self.tell_ended(0)
            else:
                self.doze()

    def _run_part(self, settings: StreamSettings, decoder: LiveDecoder, kind: PieceKind) -> None:
        part = StreamPart(self, self._door.admission, settings, decoder, kind=kind)
        try:
            pictures = part.run()
        finally:
            part.close()
        self.tell_ended(pictures)

    def _open_source(self, settings: StreamSettings) -> LiveDecoder:
        """A file is read by the child itself; a list of pictures is fed to it."""
        assert self.request.source is not None
        source = decode_source(self.request.source)
        if not isinstance(source, EncodedFrames):
            return self._open_decoder(settings, source, "bytes")
        decoder = self._open_decoder(settings, None, "picture")
        for index, frame in enumerate(source.frames):
            decoder.feed(frame, seq=index, time_s=index / source.fps)
        decoder.end_input()
        return decoder

    def _open_decoder(
        self, settings: StreamSettings, source: MediaBytes | MediaFile | None, kind: PieceKind
    ) -> LiveDecoder:
        format = self.request.format
        job = StreamJob(
            request=settings.decode, limits=self._door.pool.limits, fps=settings.fps,
            window_frames=settings.window_frames, whole=source is not None,
            format="image" if kind == "picture" and format == "auto" else format,
        )  # fmt: skip
        return open_stream(self._door.pool, job, source, self.cancelled)

    # ------------------------------------------------------------------------------------------ used by its parts

    @property
    def wake_fd(self) -> int:
        return self._wake

    @property
    def has_room(self) -> bool:
        """Whether another window may be laid out."""
        return self._in_flight < WINDOWS_IN_FLIGHT

    def doze(self) -> None:
        """Wait until something was sent or a vector was made. Raises RequestCancelled."""
        select.select([self._wake], [], [], DOZE_S)
        self.rouse()

    def rouse(self) -> None:
        """Take note of having been woken. Raises RequestCancelled."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        if self.cancelled.is_set():
            raise RequestCancelled

    def take_media(self, decoder: LiveDecoder) -> tuple[list[int], StreamEnd | None]:
        """Move to the child what it has room for: the numbers of those pieces, and the end of the media, where that
        came."""
        seqs, size = [], 0
        end = None
        while self._inbox and decoder.pending_bytes < MAX_DECODER_BYTES and end is None:
            message = self._inbox.popleft()
            if isinstance(message, StreamEnd):
                end = message
            else:
                decoder.feed(message.data, seq=message.seq, time_s=message.time_s)
                seqs.append(message.seq)
                size += len(message.data)
        if seqs:
            self._door.send(StreamTaken(request_id=self.request.request_id, count=len(seqs), size_bytes=size))
        return seqs, end

    def drop(self, seqs: tuple[int, ...], reason: DropReason) -> None:
        if seqs:
            self._door.send(FramesDropped(request_id=self.request.request_id, seqs=seqs, reason=reason))

    def tell_opened(self, settings: StreamSettings) -> None:
        self._door.send(
            StreamOpened(
                request_id=self.request.request_id, window=settings.window, evs=settings.evs,
                frames_per_slot=settings.frames_per_slot,
                width=self.request.dimensions or self._door.admission.family.shape.hidden_size,
            )
        )  # fmt: skip

    def tell_ended(self, pictures: int) -> None:
        self._door.send(StreamEnded(request_id=self.request.request_id, windows=self._windows, pictures=pictures))

    def submit(self, prompt: Prompt, items: tuple[MediaItem, ...], describe: Callable[[int], WindowLaid]) -> None:
        """Tell the client, then the model's thread, unless the client has gone."""
        request = self.request
        index, self._windows = self._windows, self._windows + 1
        goal = Pooled(dimensions=request.dimensions, normalize=request.normalize, finished=self._finish_window)
        sequence = Sequence(
            request_id=request.request_id, index=index, arrival=self._door.next_arrival(), priority=request.priority,
            prompt=prompt, items=items, goal=goal, line=request.request_id if request.source is None else None,
        )  # fmt: skip
        self._door.prepare([sequence])
        with self._lock:
            if self.cancelled.is_set():
                raise RequestCancelled
            self._in_flight += 1
            self._door.send(describe(index))
            self._door.post([sequence])
