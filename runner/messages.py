"""The plain data that crosses the door between the HTTP process and the engine.

Owns every message type and its msgpack form; knows nothing of torch, sockets or HTTP. All structs are frozen: a
message is made once and never filled in later."""

from __future__ import annotations

from typing import Literal

import msgspec

from runner.embed_messages import Embed, Vector
from runner.heartbeat import Ping, Pong
from runner.requests import ChatMessage, EvsOptions, MediaPart, Message, SamplingParams
from runner.stream_messages import (
    FramesDropped,
    OpenStream,
    StreamData,
    StreamEnd,
    StreamEnded,
    StreamOpened,
    StreamTaken,
    WindowLaid,
)

FinishReason = Literal["stop", "length", "abort", "error"]
OverlayForm = Literal["sheet", "animation"]
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


class Overlay(Message, frozen=True, kw_only=True):
    """Draw which cells of a clip would be kept: a PNG sheet of its frames, or an animated WebP."""

    request_id: str
    clip: MediaPart
    evs: EvsOptions = EvsOptions()
    form: OverlayForm = "sheet"


class Abort(Message, frozen=True, kw_only=True):
    """Free everything the request holds, wherever it is; `index` picks one of its n answers.

    `reason` is how the answer ended for its reader: one that a stop string ended is no broken one.
    """

    request_id: str
    index: int | None = None
    reason: Literal["abort", "stop"] = "abort"


class GetStats(Message, frozen=True, kw_only=True):
    request_id: str


class DropCaches(Message, frozen=True, kw_only=True):
    """Forget decoded clips, Selections, encodings and computed rows: what comes next is done afresh."""


class Shutdown(Message, frozen=True, kw_only=True):
    """Stop taking requests, finish (or after `grace_s` abort) what runs, exit."""

    grace_s: float = 0.0


ToEngine = (
    Generate | Embed | Render | Overlay | OpenStream | StreamData | StreamEnd | Abort | GetStats | DropCaches | Shutdown
    | Ping
)  # fmt: skip


# ------------------------------------------------------------------------------------------------- engine -> client


class EngineInfo(Message, frozen=True, kw_only=True):
    """What the engine turned out to be, once the model is loaded."""

    model: str
    family: str
    device: str
    dtype: str
    parameters: int
    vocab_size: int
    embedding_width: int = 0
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
    seed: int | None = None


class VideoUsage(Message, frozen=True, kw_only=True):
    """One clip as it was looked at: `timestamps_s` of each sampled frame, `size` as resized (height, width)."""

    duration_s: float
    timestamps_s: tuple[float, ...]
    size: tuple[int, int]
    fps: float | None
    broken_frames: int = 0


class PromptUsage(Message, frozen=True, kw_only=True):
    prompt_tokens: int
    evs: EvsUsage | None = None
    video: tuple[VideoUsage, ...] = ()
    image_tokens: int = 0
    video_tokens: int = 0


class Accepted(Message, frozen=True, kw_only=True):
    """Submission is over: lengths, positions and budgets hold; only our own faults can stop the answer now."""

    request_id: str
    usage: PromptUsage
    max_tokens: int


class EmbedAccepted(Message, frozen=True, kw_only=True):
    """As Accepted, for an embedding request: one usage an input."""

    request_id: str
    usages: tuple[PromptUsage, ...]


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
    """New tokens of one answer. `stop_token_id` is the stop or end token that ended it (not in `token_ids`),
    `cached_tokens` how many rows of its prompt were computed for an earlier request."""

    request_id: str
    index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    cached_tokens: int = 0
    error: str | None = None


class StepOutput(Message, frozen=True, kw_only=True):
    """All that one step produced: one message, one wake-up."""

    deltas: tuple[Delta, ...] = ()
    vectors: tuple[Vector, ...] = ()


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


class Drawn(Message, frozen=True, kw_only=True):
    """A picture file and what it shows."""

    request_id: str
    data: bytes
    media_type: str
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


FromEngine = (
    EngineInfo | Loading | Fatal | Accepted | EmbedAccepted | Rejected | Progress | StepOutput | Rendered | Drawn
    | Stats | StreamOpened | WindowLaid | FramesDropped | StreamTaken | StreamEnded | Pong
)  # fmt: skip


# ------------------------------------------------------------------------------------------------------- wire form
MAX_MESSAGE_BYTES = 1 << 31
_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_from_engine = msgspec.msgpack.Decoder(FromEngine)


def encode_message(message: Message) -> bytes:
    return _encoder.encode(message)


def decode_to_engine(data: bytes | memoryview) -> ToEngine:
    return _to_engine.decode(data)


def decode_from_engine(data: bytes | memoryview) -> FromEngine:
    return _from_engine.decode(data)
