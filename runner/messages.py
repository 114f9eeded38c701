"""The plain data that crosses the door between the HTTP process and the engine.

Owns every message type and its msgpack form; knows nothing of torch, sockets or HTTP. All structs are frozen: a
message is made once and never filled in later. Half-open intervals, seconds and bytes in names, as everywhere.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

FinishReason = Literal["stop", "length", "abort", "error"]
ErrorKind = Literal[
    "invalid",  # the request can never work as written
    "not_found",  # no such model or file
    "too_large",  # a stated limit on bytes, pixels, frames, duration or tokens is passed
    "unsupported_media",  # a container or codec we do not take
    "undecodable",  # the right kind of file, but nothing in it can be shown
    "queue_full",  # try again later
    "deadline",  # decoding took longer than its limit
    "unavailable",  # draining, loading or dead
    "internal",  # our own fault
]


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all that crosses the wire; the tag is the class name."""


# ---------------------------------------------------------------------------------------- what a request is made of


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


class EvsOptions(Message, frozen=True, kw_only=True):
    """Efficient Video Sampling as asked for; None takes the server's default."""

    method: Literal["none", "gate", "evs", "uniform", "random"] | None = None
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


# ------------------------------------------------------------------------------------------------- client -> engine


class Generate(Message, frozen=True, kw_only=True):
    """Answer a chat. `n` independent answers share the media and its encoding."""

    request_id: str
    chat: tuple[ChatMessage, ...]
    sampling: SamplingParams = SamplingParams()
    evs: EvsOptions = EvsOptions()
    n: int = 1
    priority: int = 0
    progress: bool = False


class Render(Message, frozen=True, kw_only=True):
    """Say what the engine would see for this chat, and generate nothing."""

    request_id: str
    chat: tuple[ChatMessage, ...]
    evs: EvsOptions = EvsOptions()
    include_frames: bool = False


class Abort(Message, frozen=True, kw_only=True):
    """Free everything the request holds, wherever it is; `index` picks one of its n answers."""

    request_id: str
    index: int | None = None


class GetStats(Message, frozen=True, kw_only=True):
    request_id: str


class Shutdown(Message, frozen=True, kw_only=True):
    """Stop taking requests, finish (or after `grace_s` abort) what runs, exit."""

    grace_s: float = 0.0


ToEngine = Generate | Render | Abort | GetStats | Shutdown


# ------------------------------------------------------------------------------------------------- engine -> client


class EngineInfo(Message, frozen=True, kw_only=True):
    """What the engine turned out to be, once the model is loaded."""

    model: str
    family: str
    device: str
    dtype: str
    parameters: int
    vocab_size: int
    max_model_len: int
    page_size: int
    num_pages: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_media_items: int
    modalities: tuple[str, ...]
    eos_token_ids: tuple[int, ...]
    default_max_tokens: int | None
    tokenizer_json: str
    load_s: float
    notes: tuple[str, ...] = ()


class Loading(Message, frozen=True, kw_only=True):
    """How far loading is, for a progress bar; `total` 0 when it cannot be known."""

    phase: str
    done: int
    total: int


class EvsUsage(Message, frozen=True, kw_only=True):
    """What pruning did over all clips of a request; `kept_per_slot` has one list a clip."""

    method: str
    frames: int
    slots: int
    cells: int
    kept: int
    kept_per_slot: tuple[tuple[int, ...], ...]
    encoder_cells: int
    encoder: str
    rate: float | None = None
    threshold: float | None = None
    refresh: int | None = None


class VideoUsage(Message, frozen=True, kw_only=True):
    """One clip as it was looked at: `timestamps_s` of each sampled frame, `size` as resized (height, width)."""

    duration_s: float
    timestamps_s: tuple[float, ...]
    size: tuple[int, int]
    fps: float | None
    broken_frames: int = 0


class PromptUsage(Message, frozen=True, kw_only=True):
    prompt_tokens: int
    cached_tokens: int = 0
    evs: EvsUsage | None = None
    video: tuple[VideoUsage, ...] = ()
    image_tokens: int = 0
    video_tokens: int = 0


class Accepted(Message, frozen=True, kw_only=True):
    """Submission is over: lengths, positions and budgets hold; only our own faults can stop the answer now."""

    request_id: str
    usage: PromptUsage
    max_tokens: int


class Rejected(Message, frozen=True, kw_only=True):
    request_id: str
    kind: ErrorKind
    message: str
    param: str | None = None
    code: str | None = None


class Progress(Message, frozen=True, kw_only=True):
    """Only sent when asked for. Phases: decode, encode, prefill."""

    request_id: str
    phase: str
    done: int
    total: int


class TokenLogprob(Message, frozen=True, kw_only=True):
    """The chosen token's log-probability and the best alternatives, highest first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Delta(Message, frozen=True, kw_only=True):
    """New tokens of one answer. `stop_token_id` is the stop or end token that ended it (not in `token_ids`)."""

    request_id: str
    index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: str | None = None


class StepOutput(Message, frozen=True, kw_only=True):
    """All that one step produced: one message, one wake-up."""

    deltas: tuple[Delta, ...]


class RenderedItem(Message, frozen=True, kw_only=True):
    kind: Literal["image", "video"]
    timestamps_s: tuple[float, ...]
    size: tuple[int, int]
    slots: int
    grid: tuple[int, int]
    kept: tuple[tuple[int, ...], ...]
    pixels_sha256: str
    frames_png: tuple[bytes, ...] = ()


class Rendered(Message, frozen=True, kw_only=True):
    request_id: str
    prompt_token_ids: tuple[int, ...]
    position_ids: tuple[tuple[int, ...], ...]
    items: tuple[RenderedItem, ...]
    usage: PromptUsage


class Stats(Message, frozen=True, kw_only=True):
    """Counters (ever rising) and gauges. A key is a metric's name with its labels in braces, Prometheus' own form."""

    request_id: str
    counters: dict[str, float]
    gauges: dict[str, float]


class Fatal(Message, frozen=True, kw_only=True):
    """The engine cannot start or go on; it exits after this."""

    kind: ErrorKind
    message: str


FromEngine = EngineInfo | Loading | Accepted | Rejected | Progress | StepOutput | Rendered | Stats | Fatal


# ------------------------------------------------------------------------------------------------------- wire form

MAX_MESSAGE_BYTES = 1 << 31
Length = Annotated[int, msgspec.Meta(ge=0, lt=MAX_MESSAGE_BYTES)]

_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_from_engine = msgspec.msgpack.Decoder(FromEngine)


def encode_message(message: Message) -> bytes:
    return _encoder.encode(message)


def decode_to_engine(data: bytes | memoryview) -> ToEngine:
    return _to_engine.decode(data)


def decode_from_engine(data: bytes | memoryview) -> FromEngine:
    return _from_engine.decode(data)
