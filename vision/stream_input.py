"""What a stream's child reads from: pieces off a pipe, as single pictures or as one run of bytes that never seeks.

Owns the reading; knows nothing of codecs or of what the pieces hold.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from vision.containers import HEAD_BYTES
from vision.stream_protocol import PIECE_BYTES, unpack_piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one message brought. time_s: when, for a picture."""

    seq: int
    time_s: float
    data: bytes


class PieceReader:
    """Pieces off a descriptor, blocking; each at most `max_bytes`."""

    def __init__(self, fd: int, max_bytes: int) -> None:
        self._fd = fd
        self._max_bytes = max_bytes

    def read(self) -> Piece | None:
        """The next piece; None at the end, also at one that comes in the middle of a piece."""
        head = self._read_exactly(PIECE_BYTES)
        if head is None:
            return None
        seq, time_s, size = unpack_piece(head)
        data = self._read_exactly(min(size, self._max_bytes))
        return None if data is None else Piece(seq=seq, time_s=time_s, data=data)

    def _read_exactly(self, size: int) -> bytes | None:
        parts = []
        while size:
            part = os.read(self._fd, size)
            if not part:
                return None
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


class PieceFile:
    """Pieces as a file that can only be read on. A demuxer sees no seek, and so asks for none."""

    def __init__(self, reader: PieceReader, first: bytes) -> None:
        self._reader = reader
        self._rest = memoryview(first)
        self.has_ended = False

    def read(self, size: int) -> bytes:
        """At least one byte, at most `size`; b"" at the end."""
        while not self._rest and not self.has_ended:
            self._pull()
        taken = self._rest[:size]
        self._rest = self._rest[size:]
        return bytes(taken)

    def peek(self, enough: int = HEAD_BYTES) -> bytes:
        """The bytes that come next, without taking them: at least `enough` unless the stream ends before."""
        while len(self._rest) < enough and not self.has_ended:
            self._pull()
        return bytes(self._rest[:enough])

    def _pull(self) -> None:
        piece = self._reader.read()
        if piece is None:
            self.has_ended = True
            return
        self._rest = memoryview(bytes(self._rest) + piece.data) if self._rest else memoryview(piece.data)
