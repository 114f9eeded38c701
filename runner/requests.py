"""What a request is made of, as plain data: media, chats, sampling. Owns the structs that clients fill in; knows
nothing of torch, sockets or HTTP. All are frozen: made once and never filled in later."""

from __future__ import annotations

from typing import Literal

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all that crosses the wire; the tag is the class name."""


class InlineBytes(Message, frozen=True, kw_only=True):
    """A whole media file carried in the message."""

    data: bytes


class StoredFile(Message, frozen=True, kw_only=True):
    """A media file on disk, readable by the engine for as long as the request lives."""

    path: str


class FrameList(Message, frozen=True, kw_only=True):
    """Encoded pictures (JPEG, PNG, WebP) that together are one clip; `fps` says when each was taken."""

    frames: tuple[bytes, ...]
    fps: float = 1.0


MediaSource = InlineBytes | StoredFile | FrameList


class VideoOptions(Message, frozen=True, kw_only=True):
    """How a clip is sampled; None leaves a bound to the family's own policy.

    `fps` and `max_frames` together mean both bounds. `start_s`/`end_s` cut half-open [start_s, end_s) from the
    clip's own time. `max_tokens` bounds the clip's cells before pruning.
    """

    fps: float | None = None
    num_frames: int | None = None
    max_frames: int | None = None
    start_s: float | None = None
    end_s: float | None = None
    max_tokens: int | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None


EvsMethod = Literal["none", "gate", "evs", "uniform", "random"]


class EvsOptions(Message, frozen=True, kw_only=True):
    """Efficient Video Sampling as asked for; None takes the server's default."""

    method: EvsMethod | None = None
    rate: float | None = None
    threshold: float | None = None
    refresh: int | None = None
    encoder: Literal["full", "skip", "reuse"] | None = None
    seed: int | None = None


class TextPart(Message, frozen=True, kw_only=True):
    text: str


class MediaPart(Message, frozen=True, kw_only=True):
    kind: Literal["image", "video"]
    source: MediaSource
    video: VideoOptions = VideoOptions()


ContentPart = TextPart | MediaPart


class ChatMessage(Message, frozen=True, kw_only=True):
    """One turn; parts stand in the order the user wrote them."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    parts: tuple[ContentPart, ...]


class SamplingParams(Message, frozen=True, kw_only=True):
    """How tokens are drawn; None takes the checkpoint's generation default.

    Stop strings are text and so belong to the detokeniser on the other side of the door; `stop_token_ids` are ours.
    `top_logprobs` is how many alternatives to report with each token (0: only the chosen one; None: nothing).
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    top_logprobs: int | None = None
