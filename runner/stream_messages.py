"""The plain data of streams: what opens and feeds one, and what it gives. Owns their structs; knows nothing of torch,
sockets or HTTP.

All are frozen, as in runner/messages.py, which lists the types that cross the door.
"""

from __future__ import annotations

from typing import Literal

from runner.requests import EvsOptions, MediaSource, Message

StreamFormat = Literal["auto", "image", "jpeg", "png", "webp", "video", "mp4", "webm", "mpegts"]
Overload = Literal["wait", "drop_oldest", "drop_newest", "error"]
DropReason = Literal["overload", "duplicate", "decode_error", "unchanged", "sampled_out", "closed"]


# ------------------------------------------------------------------------------------------------- client -> engine


class WindowOptions(Message, frozen=True, kw_only=True):
    """Windows over a stream; None takes the default. Settled, all are whole slots: see runner/stream_options.py."""

    duration_s: float | None = None
    stride_s: float | None = None
    fps: float | None = None
    max_frames: int | None = None


class OpenStream(Message, frozen=True, kw_only=True):
    """One vector for each window of a stream. source None: what StreamData brings.

    gate: "changed" leaves out windows in which nothing changed. overload: what becomes of frames when windows come
    faster than vectors; "wait" takes no more until there is room. instruction None: the checkpoint's own.
    """

    request_id: str
    source: MediaSource | None = None
    format: StreamFormat = "auto"
    window: WindowOptions = WindowOptions()
    evs: EvsOptions = EvsOptions()
    gate: Literal["all", "changed"] = "all"
    overload: Overload = "wait"
    dimensions: int | None = None
    normalize: bool = True
    instruction: str | None = None
    priority: int = 0


class StreamData(Message, frozen=True, kw_only=True):
    """One picture, taken at time_s, or the next bytes of a container, whose times are its own."""

    request_id: str
    data: bytes
    seq: int = 0
    time_s: float = 0.0


class StreamEnd(Message, frozen=True, kw_only=True):
    """How a stream's media ends: "commit" makes windows of all that came, "clear" forgets what is in no window yet.
    What follows is a new stream in the same session."""

    request_id: str
    how: Literal["commit", "clear"]


# ------------------------------------------------------------------------------------------------- engine -> client


class StreamOpened(Message, frozen=True, kw_only=True):
    """The values in force. frames_per_slot: frames that are read together, on whose borders windows lie."""

    request_id: str
    window: WindowOptions
    evs: EvsOptions
    frames_per_slot: int
    width: int


class WindowLaid(Message, frozen=True, kw_only=True):
    """A window that will have a vector, as `Vector` of the same index, unless the stream ends before.

    Times count from the stream's first picture, which came at origin_s. cells: of its slots, changed: those that the
    gate kept since they changed, encoded: those that were to be encoded for this window and for none before.
    """

    request_id: str
    index: int
    start_s: float
    end_s: float
    origin_s: float
    frame_seqs: tuple[int, ...]
    times_s: tuple[float, ...]
    size: tuple[int, int]
    prompt_tokens: int
    slots: int
    cells: int
    kept: int
    changed: int
    encoder_cells: int
    decoded_s: float  # seconds since its last frame came out of the decoder


class FramesDropped(Message, frozen=True, kw_only=True):
    """Frames that no window uses. Every frame is named here once or stands in a window."""

    request_id: str
    seqs: tuple[int, ...]
    reason: DropReason


class StreamTaken(Message, frozen=True, kw_only=True):
    """So many StreamData are on their way to the decoder: there is room for as many more."""

    request_id: str
    count: int
    size_bytes: int


class StreamEnded(Message, frozen=True, kw_only=True):
    """The answer to StreamEnd, or the end of a source: so many windows were laid since the stream was opened."""

    request_id: str
    windows: int
    pictures: int
