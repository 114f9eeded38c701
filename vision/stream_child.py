"""Decoding a stream while it arrives, in the child: pictures one by one, or one container that never seeks.

Runs in a process forked by `vision.forkserver`, or in a test without one. Knows nothing of pipes (it is handed a reader
and a function that writes), of windows or of what frames are for. A whole file goes the same way, so that it gives the
frames that its bytes give when they come as a stream.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, cast

import av
from av.video.frame import VideoFrame

from vision.backends.protocol import Picture
from vision.color import Pixels, to_rgb
from vision.containers import HEAD_BYTES, Container, is_picture, sniff_container
from vision.decode import shown_size
from vision.demux import LIVE, Film
from vision.errors import MediaError, UndecodableError, UnsupportedMediaError
from vision.hdr import is_hdr, to_standard_range
from vision.images import open_picture, shape_picture
from vision.probe import pixel_aspect, read_clip
from vision.rotation import read_orientation, turn_upright
from vision.stream_input import Piece, PieceFile, PieceReader
from vision.stream_protocol import (
    PICTURE_FORMATS,
    DropReason,
    FrameRecord,
    Record,
    SkipRecord,
    StreamJob,
    StreamReport,
)
from vision.stream_times import GridSampler

LIVE_READERS = {"mov": "mp4", "matroska": "webm", "mpegts": "mpegts"}
SNIFF_BYTES = 1024  # all that a signature of a streamed container needs
MAX_SKIPPED = 64
MAX_BAD_PICTURES = 16

Emit = Callable[[Record, Pixels | None], None]


@dataclass(slots=True, kw_only=True)
class Sink:
    """Numbers, sizes and sends what is decoded. A stream's first picture decides the size of all."""

    job: StreamJob
    emit: Emit
    sampler: GridSampler
    pictures: bool
    origin_s: float = math.nan
    latest_s: float = -math.inf
    target: tuple[int, int] = (0, 0)
    source_size: tuple[int, int] = (0, 0)
    skipped: dict[DropReason, list[int]] = field(default_factory=dict)

    def place(self, seq: int, time_s: float) -> int | None:
        """The point of the grid that a picture stands for; None when it is not looked at, which has been said."""
        if math.isnan(self.origin_s):
            self.origin_s = time_s
        if not time_s > self.latest_s:
            self.skip(seq, "duplicate")
            return None
        self.latest_s = time_s
        self.job.limits.check_duration(time_s - self.origin_s)
        point = self.sampler.take(time_s - self.origin_s)
        if point is None:
            self.skip(seq, "sampled_out")
        return point

    @property
    def shown_origin_s(self) -> float:
        """Pictures come with somebody's clock; a container's own begins anywhere, and players show it from 0."""
        return self.origin_s if self.pictures else 0.0

    def skip(self, seq: int, reason: DropReason) -> None:
        seqs = self.skipped.setdefault(reason, [])
        seqs.append(seq)
        if len(seqs) >= MAX_SKIPPED:
            self.flush()

    def flush(self) -> None:
        for reason, seqs in self.skipped.items():
            self.emit(SkipRecord(seqs=tuple(seqs), reason=reason), None)
        self.skipped.clear()

    def put(self, seq: int, place: int, pixels: Pixels, shown: tuple[int, int], *, transfer: int = 0) -> None:
        """pixels (h, w, 3) uint8, upright; shown: their size with square pixels; transfer: as in Picture."""
        if self.target == (0, 0):
            self.source_size = shown
            self.target = self.job.request.resize.target_size(self.job.window_frames, *shown)
        frame: Pixels = shape_picture(pixels, self.source_size, self.target, self.job.request)[0]
        if is_hdr(transfer):
            frame = to_standard_range(frame, transfer)
        self.flush()
        record = FrameRecord(
            seq=seq, place=place, time_s=self.latest_s - self.origin_s, origin_s=self.shown_origin_s,
            height=frame.shape[1], width=frame.shape[2], source_size=self.source_size,
        )  # fmt: skip
        self.emit(record, frame)


def decode_stream(job: StreamJob, file: BinaryIO | None, reader: PieceReader | None, emit: Emit) -> StreamReport:
    """Decode until the input ends. Raises any error of the media tree but those of the cage.

    file: a whole file; reader: pieces, where there is none.
    """
    if file is not None:
        return _decode_file(job, file, emit)
    assert reader is not None
    first = reader.read()
    if first is None:
        return StreamReport(pictures=0, codec="", container="")
    if job.format in PICTURE_FORMATS or (job.format == "auto" and is_picture(first.data[:HEAD_BYTES])):
        return _decode_pictures(job, reader, first, emit)
    return _decode_live(job, PieceFile(reader, first.data), emit)


# -------------------------------------------------------------------------------------------------------- pictures


def _decode_pictures(job: StreamJob, reader: PieceReader, first: Piece, emit: Emit) -> StreamReport:
    """One picture a piece; one that cannot be read is named and left out. Too many in a row are no pictures."""
    sink = Sink(job=job, emit=emit, sampler=GridSampler.of_pictures(job.fps), pictures=True)
    count = bad = 0
    container = ""
    piece: Piece | None = first
    while piece is not None:
        count += 1
        try:
            found = sniff_container(piece.data[:HEAD_BYTES], "image")
            _check_format(job, found.reader.lower(), found)
            container = found.name
            _take_picture(job, piece, found, sink)
            bad = 0
        except UndecodableError as error:
            bad += 1
            sink.skip(piece.seq, "decode_error")
            if bad >= MAX_BAD_PICTURES:
                sink.flush()
                raise UndecodableError(f"{bad} pictures in a row cannot be decoded: {error.message}") from error
        sink.flush()  # pictures come one by one: what became of each is said at once
        piece = reader.read()
    return StreamReport(pictures=count, codec=container.lower(), container="pictures")


def _take_picture(job: StreamJob, piece: Piece, container: Container, sink: Sink) -> None:
    """A picture that is not looked at is not decoded either; a damaged one leaves its place to the next."""
    before = sink.sampler.last
    place = sink.place(piece.seq, piece.time_s)
    if place is None:
        return
    try:
        pixels = open_picture(piece.data, container, job.limits)
    except UndecodableError:
        sink.sampler.last = before
        raise
    sink.put(piece.seq, place, pixels, (pixels.shape[0], pixels.shape[1]))


def _check_format(job: StreamJob, found: str, container: Container) -> None:
    if job.format not in ("auto", "image", "video", found):
        raise UnsupportedMediaError(f"the session's input format is {job.format} and this is {container.name}")


# --------------------------------------------------------------------------------------------------- one container


def _decode_live(job: StreamJob, file: PieceFile, emit: Emit) -> StreamReport:
    container = _sniff_live(file)
    name = LIVE_READERS.get(container.reader)
    if name is None:
        raise UnsupportedMediaError(
            f"{container.name} cannot be read while it arrives; send fragmented MP4, WebM or MPEG-TS, or pictures"
        )
    _check_format(job, name, container)
    try:
        film = Film(cast("BinaryIO", file), container, job.limits, LIVE)
    except UndecodableError as error:
        raise _explain_live(container, error) from error
    with film.opened:
        sink = Sink(job=job, emit=emit, sampler=GridSampler.of_stream(job.fps), pictures=False)
        try:
            return _decode_film(film, container, sink, is_over=lambda: file.has_ended)
        except UndecodableError as error:
            raise (_explain_live(container, error) if sink.target == (0, 0) else error) from error


def _explain_live(container: Container, error: UndecodableError) -> UndecodableError:
    """Of a container that gave no picture at all: most such MP4s are whole files, whose index comes last."""
    if container.reader != "mov":
        return error
    return UndecodableError(
        "this MP4 cannot be read while it arrives: it is damaged, or its index comes last; write it fragmented "
        "(movflags frag_keyframe+empty_moov)"
    )


def _sniff_live(file: PieceFile) -> Container:
    """As soon as the bytes say what they are: a stream's first piece may be short."""
    for enough in (16, 64, 256, SNIFF_BYTES):
        head = file.peek(enough)
        try:
            return sniff_container(head, "video")
        except MediaError:
            if enough == SNIFF_BYTES or len(head) < enough:
                raise
    raise AssertionError


def _decode_file(job: StreamJob, file: BinaryIO, emit: Emit) -> StreamReport:
    """A whole file is checked as any clip is, by its packets, before its first picture is decoded."""
    head = file.read(HEAD_BYTES) or b""
    file.seek(0)
    container = sniff_container(head, "video")
    clip = read_clip(file, container, job.limits)
    ticks = clip.ticks.tolist() if clip.is_ordinal else None
    film = Film(file, container, job.limits, LIVE)
    with film.opened:
        sink = Sink(job=job, emit=emit, sampler=GridSampler.of_stream(job.fps), pictures=False)
        return _decode_film(film, container, sink, is_over=lambda: True, ordinal_ticks=ticks)


def _decode_film(
    film: Film,
    container: Container,
    sink: Sink,
    *,
    is_over: Callable[[], bool],
    ordinal_ticks: list[int] | None = None,
) -> StreamReport:
    """Every picture in the order in which they are shown. ordinal_ticks: the k-th picture's time, where the file's own
    are in another order."""
    aspect, time_base = pixel_aspect(film.stream), film.stream.time_base
    assert time_base is not None
    count = 0
    for frame in _frames(film, is_over):
        seq, count = count, count + 1
        tick = frame.pts if frame.pts is not None else frame.dts
        if ordinal_ticks is not None:
            tick = ordinal_ticks[seq] if seq < len(ordinal_ticks) else None
        if frame.is_corrupt or tick is None:
            sink.skip(seq, "decode_error")
            continue
        place = sink.place(seq, float(tick * time_base))
        if place is not None:
            sink.job.limits.check_picture(frame.height, frame.width)
            orientation = read_orientation(frame)
            picture = Picture(pixels=turn_upright(to_rgb(frame), orientation), orientation=orientation)
            sink.put(seq, place, picture.pixels, shown_size(picture, aspect), transfer=int(frame.color_trc))
    sink.flush()
    if sink.target == (0, 0):
        raise UndecodableError(f"no picture of the {container.name} stream could be decoded; it may be damaged")
    return StreamReport(pictures=count, codec=film.stream.codec_context.name, container=container.name)


def _frames(film: Film, is_over: Callable[[], bool]) -> Iterator[VideoFrame]:
    """Frames of the film, and those the decoder still holds at the end. Damaged packets are passed over."""
    context = film.stream.codec_context
    for packet in film.read_packets():
        try:
            frames = film.stream.decode(packet)
        except MemoryError:
            raise
        except av.error.FFmpegError:
            continue
        yield from frames
    if not is_over():
        raise UndecodableError("the stream is damaged: nothing that follows can be read; start a new one")
    try:
        yield from film.stream.decode(None)
    except av.error.FFmpegError:
        return
    finally:
        context.flush_buffers()
