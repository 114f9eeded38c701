"""Decoded clips and the Selections made of them, kept for the next question. Owns complete keys, a bound in bytes and
one decode at a time for each key; decodes and selects nothing itself.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from evs.policy import EvsPolicy
from evs.selection import Selection
from runner.errors import RequestCancelled
from runner.items import Decoded, framed_digest
from runner.requests import FrameList, InlineBytes, MediaSource, StoredFile
from vision.request import DecodeRequest

READ_BYTES = 1 << 20
WAIT_S = 0.05
MAX_SELECTIONS = 32  # of one clip


def media_key(source: MediaSource, request: DecodeRequest, family: str) -> str:
    """Hex digest of a file's bytes and of everything that decides what is decoded from them.

    Policies are frozen dataclasses: their representation names every field and its class.
    """
    return framed_digest((family.encode(), repr(request).encode(), _source_digest(source)))


def _source_digest(source: MediaSource) -> bytes:
    match source:
        case InlineBytes(data=data):
            return hashlib.sha256(data).digest()
        case FrameList(frames=frames, fps=fps):
            return framed_digest((b"frames", repr(fps).encode(), *frames)).encode()
        case StoredFile(path=path):
            digest = hashlib.sha256()
            with Path(path).open("rb") as file:
                while chunk := file.read(READ_BYTES):
                    digest.update(chunk)
            return digest.digest()


@dataclass(slots=True, kw_only=True, eq=False)
class _Entry:
    decoded: Decoded
    selections: dict[tuple[object, ...], Selection] = field(default_factory=dict)


class MediaCache:
    """Shared by the submitting threads. `max_bytes` bounds pixels; 0 keeps nothing."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._lock = threading.Lock()
        self._busy: dict[str, threading.Lock] = {}
        self.events: Counter[str] = Counter()

    @property
    def used_bytes(self) -> int:
        with self._lock:
            return sum(entry.decoded.size_bytes for entry in self._entries.values())

    def decode(self, key: str, decode: Callable[[], Decoded], cancel: threading.Event) -> Decoded:
        """What `decode` gives, from the cache if it is there. Others asking for the same key wait for the first.

        Raises whatever `decode` raises; a failure is not kept, and the next one tries for itself.
        """
        with self._only_one(key, cancel):
            entry = self._find(key)
            if entry is not None:
                self.events["hits"] += 1
                return entry.decoded
            self.events["misses"] += 1
            decoded = decode()
            self._keep(key, decoded)
            return decoded

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()

    def selection(self, key: str, policy: EvsPolicy) -> Selection | None:
        entry = self._find(key)
        return None if entry is None else entry.selections.get(policy.key())

    def keep_selection(self, key: str, policy: EvsPolicy, selection: Selection) -> None:
        entry = self._find(key)
        if entry is None:
            return
        with self._lock:  # two requests about one clip may end up here at once
            while len(entry.selections) >= MAX_SELECTIONS:
                entry.selections.pop(next(iter(entry.selections)))
            entry.selections[policy.key()] = selection

    def _find(self, key: str) -> _Entry | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def _keep(self, key: str, decoded: Decoded) -> None:
        if decoded.size_bytes > self.max_bytes:
            return
        with self._lock:
            self._entries[key] = _Entry(decoded=decoded)
            used = sum(entry.decoded.size_bytes for entry in self._entries.values())
            while used > self.max_bytes:
                _, old = self._entries.popitem(last=False)
                used -= old.decoded.size_bytes
                self.events["evictions"] += 1

    @contextmanager
    def _only_one(self, key: str, cancel: threading.Event) -> Iterator[None]:
        """Hold this key; who waits for it looks up now and then whether it still should."""
        with self._lock:
            lock = self._busy.setdefault(key, threading.Lock())
        while not lock.acquire(timeout=WAIT_S):
            if cancel.is_set():
                raise RequestCancelled
        try:
            yield
        finally:
            lock.release()
            with self._lock:
                if not lock.locked():
                    self._busy.pop(key, None)
