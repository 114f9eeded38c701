"""Submission: from a request to sequences that are sure to run. Owns every check a user can fail, and ends before the
first token; knows no sockets and never touches the model.

Runs in threads beside the model's: decoding waits in a child process, the rest is arithmetic on small arrays.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from evs.selection import keep_all
from runner.encoder_store import EncoderStore
from runner.errors import RequestError
from runner.families.base import Family
from runner.items import MediaItem
from runner.messages import Generate, PromptUsage
from runner.prompt import Prompt, build_prompt
from runner.requests import ChatMessage, EvsOptions, FrameList, InlineBytes, MediaPart, MediaSource, StoredFile
from runner.sampling import settle_sampling
from runner.sequence import Sequence
from runner.tokenizer import PromptTokenizer
from runner.usage import prompt_usage
from vision.cage import DecodePool
from vision.errors import (
    DecodeCancelledError,
    DecodeDeadlineError,
    InvalidMediaOptionError,
    MediaError,
    MediaTooLargeError,
    UnsupportedMediaError,
)
from vision.request import EncodedFrames, MediaBytes, MediaFile
from vision.request import MediaSource as DecodeSource

OnDecoded = Callable[[int, int], None]


class Cancelled(Exception):  # noqa: N818 - not an error: the client has gone
    """Nobody waits for this request any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the model and its memory can hold."""

    max_model_len: int
    max_positions: int
    kv_tokens: int
    max_media_items: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Laid:
    """A chat with its media decoded and its prompt laid out."""

    items: tuple[MediaItem, ...]
    prompt: Prompt
    usage: PromptUsage


class Admission:
    """Shared by the submitting threads; holds no request's state."""

    def __init__(
        self,
        family: Family,
        tokenizer: PromptTokenizer,
        pool: DecodePool,
        store: EncoderStore,
        limits: Limits,
        *,
        seed: int | None,
    ) -> None:
        self.family = family
        self._tokenizer = tokenizer
        self._pool = pool
        self._store = store
        self.limits = limits
        self._seed = seed  # with it, requests that give none draw from their order of arrival, and not from chance

    def submit(
        self, request: Generate, arrival: int, cancel: threading.Event, on_decoded: OnDecoded
    ) -> tuple[list[Sequence], PromptUsage]:
        """Check, decode, select, lay out. Raises RequestError, or Cancelled once `cancel` is set."""
        if not 1 <= request.n <= 128:
            raise RequestError("invalid", f"n must be between 1 and 128, got {request.n}", param="n")
        settle_sampling(  # before anything costly: what is wrong with the values is wrong at once
            request.sampling, self.family.defaults, vocab_size=self.family.shape.vocab_size, room=1, seed=0
        )
        laid = self.lay_out(request.chat, request.evs, cancel, on_decoded)
        room = self._room(len(laid.prompt), laid.prompt.next_position, request.sampling.max_tokens)
        seed = self._seed_of(request, arrival)
        sequences = []
        for index in range(request.n):
            drawing = settle_sampling(
                request.sampling,
                self.family.defaults,
                vocab_size=self.family.shape.vocab_size,
                room=room,
                seed=seed,
                stream=index,
            )
            sequences.append(
                Sequence(
                    request_id=request.request_id,
                    index=index,
                    arrival=arrival,
                    priority=request.priority,
                    prompt=laid.prompt,
                    items=laid.items,
                    drawing=drawing,
                    wants_progress=request.progress,
                )
            )
        return sequences, laid.usage

    def _seed_of(self, request: Generate, arrival: int) -> int:
        if request.sampling.seed is not None:
            return request.sampling.seed
        return secrets.randbits(64) if self._seed is None else self._seed + (arrival << 16)

    def lay_out(
        self, chat: tuple[ChatMessage, ...], evs: EvsOptions, cancel: threading.Event, on_decoded: OnDecoded
    ) -> Laid:
        """Decode every part in written order and build the prompt."""
        _check_evs(evs)
        parts = list(_media_parts(chat))
        self._check_parts(chat, parts)
        items = []
        for part in parts:
            siblings = sum(other.kind == part.kind for other in parts)
            items.append(self._decode(part, siblings, cancel))
            on_decoded(len(items), len(parts))
        prompt, ordered = build_prompt(self.family, self._tokenizer, chat, items)
        if cancel.is_set():
            raise Cancelled
        return Laid(items=ordered, prompt=prompt, usage=prompt_usage(prompt, ordered))

    def _check_parts(self, chat: tuple[ChatMessage, ...], parts: list[MediaPart]) -> None:
        if not any(message.parts for message in chat):
            raise RequestError("invalid", "messages hold no content at all", param="messages")
        if len(parts) > self.limits.max_media_items:
            raise RequestError(
                "invalid",
                f"a request may hold {self.limits.max_media_items} images and videos, this one holds {len(parts)}",
                param="messages",
            )
        for part in parts:
            if part.kind not in self.family.modalities:
                raise RequestError("invalid", f"this model takes no {part.kind} input", param="messages")

    def _decode(self, part: MediaPart, siblings: int, cancel: threading.Event) -> MediaItem:
        try:
            wanted = self.family.decode_request(part.kind, part.video, siblings)
            frames = self._pool.decode(_decode_source(part.source), wanted, cancel)
        except DecodeCancelledError as error:
            raise Cancelled from error
        except MediaError as error:
            raise translate_media_error(error) from error
        grid = self.family.patch_grid(frames)
        item = MediaItem(kind=part.kind, frames=frames, grid=grid, selection=keep_all(grid.slots, grid.cells_per_slot))
        needed = self._store.bytes_of(item)
        if needed > self._store.max_bytes:
            raise RequestError(
                "too_large",
                f"this {part.kind} needs {needed} bytes of encoder output and the server keeps at most "
                f"{self._store.max_bytes}; sample fewer frames or a smaller size",
                param="messages",
            )
        return item

    def _room(self, prompt_tokens: int, next_position: int, max_tokens: int | None) -> int:
        """Tokens that may still be generated; raises when the prompt and max_tokens cannot fit."""
        limits = self.limits
        room = min(limits.max_model_len, limits.kv_tokens) - prompt_tokens
        if room < 1:
            raise RequestError(
                "invalid",
                f"the prompt has {prompt_tokens} tokens and the server's context is "
                f"{min(limits.max_model_len, limits.kv_tokens)}; sample fewer frames or shorten the text",
                param="messages",
                code="context_length_exceeded",
            )
        room = min(room, limits.max_positions - next_position)
        if room < 1 or (max_tokens is not None and max_tokens > room):
            raise RequestError(
                "invalid",
                f"the prompt has {prompt_tokens} tokens, which leaves room for {max(room, 0)} more; "
                f"max_tokens asks for {max_tokens or 1}",
                param="max_tokens",
                code="context_length_exceeded",
            )
        return room


def _media_parts(chat: tuple[ChatMessage, ...]) -> Iterator[MediaPart]:
    return (part for message in chat for part in message.parts if isinstance(part, MediaPart))


def _decode_source(source: MediaSource) -> DecodeSource:
    match source:
        case InlineBytes(data=data):
            return MediaBytes(data=data)
        case StoredFile(path=path):
            return MediaFile(path=path)
        case FrameList(frames=frames, fps=fps):
            return EncodedFrames(frames=frames, fps=fps)


def _check_evs(evs: EvsOptions) -> None:
    if evs.method not in (None, "none"):
        raise RequestError("invalid", f"evs.method {evs.method!r} is not served yet; use 'none'", param="evs.method")
    for name in ("rate", "threshold", "refresh", "encoder", "seed"):
        if getattr(evs, name) not in (None, "full"):
            raise RequestError("invalid", f"evs.{name} means nothing with method 'none'", param=f"evs.{name}")


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
