"""From a part of a chat to its item: decoded, and with its cells chosen. Owns the order cache, decode, select and the
words for what goes wrong there; knows no prompt.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from evs.policy import EvsPolicy
from evs.select import PendingSelection, start_selection
from evs.selection import Selection, keep_all
from runner.cells import cell_grid
from runner.encoder_store import EncoderStore
from runner.errors import RequestCancelled, RequestError
from runner.evs_options import KEEP_ALL
from runner.families.base import Family
from runner.items import Decoded, MediaItem
from runner.media_cache import MediaCache, media_key
from runner.requests import FrameList, InlineBytes, MediaPart, MediaSource, StoredFile
from vision.cage import DecodePool
from vision.errors import (
    DecodeCancelledError,
    DecodeDeadlineError,
    InvalidMediaOptionError,
    MediaError,
    MediaTooLargeError,
    UnsupportedMediaError,
)
from vision.request import DecodeRequest, EncodedFrames, MediaBytes, MediaFile
from vision.request import MediaSource as DecodeSource


class Caller(Protocol):
    """Who waits for a submission."""

    @property
    def cancel(self) -> threading.Event:
        """Set once nobody waits any more."""
        ...

    def tell_decoded(self, done: int, total: int) -> None: ...

    def finish_selection(self, item: MediaItem, pending: PendingSelection, policy: EvsPolicy) -> MediaItem:
        """Have the model's thread encode all of `item` and choose its cells; blocks. Raises RequestCancelled."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chosen:
    """A decoded part and its Selection, or the promise of one (method `evs`)."""

    key: str
    decoded: Decoded
    policy: EvsPolicy
    selection: Selection | PendingSelection

    @property
    def dense_item(self) -> MediaItem:
        grid = self.decoded.grid
        return MediaItem.of(self.decoded, keep_all(grid.slots, grid.cells_per_slot), KEEP_ALL)

    @property
    def provisional_item(self) -> MediaItem:
        """The item itself when its Selection is made, else its dense form: of the right shape, not of the right
        count."""
        if isinstance(self.selection, PendingSelection):
            return self.dense_item
        return MediaItem.of(self.decoded, self.selection, self.policy)

    @property
    def num_promised_drops(self) -> int:
        """Cells that the provisional item has and the final one will not."""
        pending = self.selection
        return pending.cells - pending.kept if isinstance(pending, PendingSelection) else 0


class Ingest:
    """Shared by the submitting threads; holds no request's state."""

    def __init__(self, family: Family, pool: DecodePool, cache: MediaCache, store: EncoderStore) -> None:
        self._family = family
        self._pool = pool
        self.cache = cache
        self.decodes: Counter[tuple[str, str]] = Counter()  # (backend, why not the one that was set, or "")
        self.store = store

    def choose(self, part: MediaPart, siblings: int, policy: EvsPolicy, cancel: threading.Event) -> Chosen:
        """Decode and select, each from the cache if it was done before. Images are never pruned."""
        policy = policy if part.kind == "video" else KEEP_ALL
        try:
            wanted = self._family.decode_request(part.kind, part.video, siblings)
            key = media_key(part.source, wanted, self._family.name)
            decoded = self.cache.decode(key, lambda: self._decode(part.source, wanted, cancel), cancel)
        except DecodeCancelledError as error:
            raise RequestCancelled from error
        except MediaError as error:
            raise translate_media_error(error) from error
        selection = self.cache.selection(key, policy) or self._select(key, decoded, policy)
        chosen = Chosen(key=key, decoded=decoded, policy=policy, selection=selection)
        self.check_bytes(chosen.provisional_item)
        return chosen

    def finish(self, chosen: Chosen, caller: Caller) -> MediaItem:
        """The item with its final Selection; waits for the encoder where the method scores what that gives."""
        pending = chosen.selection
        if not isinstance(pending, PendingSelection):
            return chosen.provisional_item
        item = caller.finish_selection(chosen.dense_item, pending, chosen.policy)
        self.cache.keep_selection(chosen.key, chosen.policy, item.selection)
        return item

    def _decode(self, source: MediaSource, wanted: DecodeRequest, cancel: threading.Event) -> Decoded:
        frames = self._pool.decode(decode_source(source), wanted, cancel)
        if frames.kind == "video":
            self.decodes[frames.backend, frames.backend_reason] += 1
        return Decoded.of(frames, self._family.patch_grid(frames))

    def _select(self, key: str, decoded: Decoded, policy: EvsPolicy) -> Selection | PendingSelection:
        if policy.method == "none":
            return keep_all(decoded.grid.slots, decoded.grid.cells_per_slot)
        selection = start_selection(decoded.grid.pixels, cell_grid(decoded.grid), policy)
        if isinstance(selection, Selection):
            self.cache.keep_selection(key, policy, selection)
        return selection

    def check_bytes(self, item: MediaItem) -> None:
        """Raises RequestError for an item whose encoding can never be kept."""
        needed = self.store.bytes_of(item)
        if needed > self.store.max_bytes:
            raise RequestError(
                "too_large",
                f"this {item.kind} needs {needed} bytes of encoder output and the server keeps at most "
                f"{self.store.max_bytes}; sample fewer frames or a smaller size",
                param="messages",
            )


def decode_source(source: MediaSource) -> DecodeSource:
    match source:
        case InlineBytes(data=data):
            return MediaBytes(data=data)
        case StoredFile(path=path):
            return MediaFile(path=path)
        case FrameList(frames=frames, fps=fps):
            return EncodedFrames(frames=frames, fps=fps)


def translate_media_error(error: MediaError) -> RequestError:
    """One table from vision's errors to the engine's kinds."""
    match error:
        case InvalidMediaOptionError():
            return RequestError("invalid", error.message, param=error.param)
        case UnsupportedMediaError():
            return RequestError("unsupported_media", error.message, param="messages")
        case MediaTooLargeError():
            return RequestError("too_large", error.message, param="messages")
        case DecodeDeadlineError():
            return RequestError("deadline", error.message, param="messages")
        case _:
            return RequestError("undecodable", error.message, param="messages")
