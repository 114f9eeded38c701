"""Owns what a session does with a piece of media before the engine has it: its number, its time, its base64.

Knows nothing of sockets or streams. Numbers rise by one unless the client gives its own; times are the client's or the
clock's, for a whole part of a session.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from app.convert import HEAD_BYTES, guess_kind
from app.media import decode_base64
from app.realtime.events import Append, InputKnobs
from runner.errors import RequestError

Clock = Literal["client", "server"]
Kind = Literal["image", "video"]
KINDS: dict[str, Kind] = {
    "image": "image", "jpeg": "image", "png": "image", "webp": "image",
    "video": "video", "mp4": "video", "webm": "video", "mpegts": "video",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Piece:
    data: bytes
    seq: int
    time_s: float


class MediaClock:
    """One part of a session: from its first piece to a commit or a clear. The first piece says whether it is pictures,
    unless the format does."""

    def __init__(self, knobs: InputKnobs | None) -> None:
        self._clock: Clock | None = None if knobs is None else knobs.timestamps
        self._kind = KINDS.get((knobs.format if knobs is not None else None) or "auto")
        self._began: float | None = None
        self._next = 0

    def take(self, data: bytes) -> Piece:
        """A binary message. Raises RequestError where it is empty, or needs a time that it cannot bring."""
        if not data:
            raise RequestError("invalid", "a binary message without bytes holds no media", code="empty_message")
        if self._kind is None:
            self._kind = guess_kind(data[:HEAD_BYTES])
        return self._number(data, None, self._picture_time(None) if self._kind == "image" else 0.0)

    def read(self, event: Append, max_bytes: int) -> Piece:
        """An append event. Raises RequestError; a piece that was refused has no number."""
        kind: Kind = "video" if event.image is None else "image"
        if self._kind not in (None, kind):
            raise RequestError(
                "invalid", f"this part of the session brings {self._kind} data, not {kind}; commit it first", param=kind
            )
        payload = event.video if event.image is None else event.image
        assert payload is not None
        _, comma, rest = payload.partition(",") if payload[:5].lower() == "data:" else ("", "", "")
        data = decode_base64(rest if comma else payload, max_bytes, param=kind)
        time_s = 0.0 if kind == "video" else self._picture_time(event.timestamp_s)
        self._kind = kind
        return self._number(data, event.seq, time_s)

    def _picture_time(self, timestamp_s: float | None) -> float:
        clock: Clock = "server" if timestamp_s is None else "client"
        if self._clock not in (None, clock):
            message = (
                "every picture needs its timestamp_s here, for the clock is the client's"
                if self._clock == "client"
                else "timestamp_s means nothing here, for the clock is the server's"
            )
            raise RequestError("invalid", message, param="timestamp_s")
        self._clock = clock
        return self._now() if timestamp_s is None else timestamp_s

    def _now(self) -> float:
        """Seconds since the part's first piece."""
        now = time.monotonic()
        if self._began is None:
            self._began = now
        return now - self._began

    def _number(self, data: bytes, seq: int | None, time_s: float) -> Piece:
        if seq is not None and seq < self._next:
            raise RequestError(
                "invalid", f"seq must rise: {seq} comes after {self._next - 1}", param="seq", code="duplicate_seq"
            )
        number = self._next if seq is None else seq
        self._next = number + 1
        return Piece(data=data, seq=number, time_s=time_s)
