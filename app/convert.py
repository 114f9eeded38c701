"""Owns the step from a checked HTTP request to the engine's plain data.

Knows nothing of HTTP or pydantic's rules (app/schemas.py has checked those) and nothing of models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from app.answer import TextOptions
from app.media import FILE_ID_SCHEME, MediaPolicy, Ready, read_base64, read_url
from app.schemas import (
    AskRequest,
    ChatRequest,
    Content,
    EvsKnobs,
    FileBody,
    FileContent,
    ImageContent,
    InputVideoContent,
    SamplingFields,
    TextContent,
    VideoContent,
    VideoKnobs,
)
from runner.errors import RequestError
from runner.requests import (
    ChatMessage,
    ContentPart,
    EvsOptions,
    FrameList,
    InlineBytes,
    MediaPart,
    MediaSource,
    SamplingParams,
    StoredFile,
    TextPart,
    VideoOptions,
)

PICTURE_HEADS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"BM")  # a GIF may be a clip, and is read as one
WEBP_HEAD = (b"RIFF", b"WEBP")  # at 0 and at 8
HEAD_BYTES = 16


# --------------------------------------------------------------------------------------------------------- the chat


def check_media_count(request: ChatRequest, max_media_items: int) -> None:
    count = sum(part.type != "text" for message in request.messages for part in message.content or [])
    if count > max_media_items:
        raise RequestError(
            "invalid", f"the chat holds {count} images and videos; the limit is {max_media_items}", param="messages"
        )


def convert_chat(request: ChatRequest, policy: MediaPolicy, ready: Ready) -> tuple[ChatMessage, ...]:
    """Messages with their media decoded; slow for large payloads, so call it in a thread."""
    knobs = MediaKnobs(video=merge_video_options(request), image=read_image_options(request))
    return tuple(
        ChatMessage(
            role=message.role,
            parts=tuple(
                _convert_part(part, policy, ready, knobs, where=f"messages[{turn}].content[{place}]")
                for place, part in enumerate(message.content or [])
            ),
        )
        for turn, message in enumerate(request.messages)
    )


def convert_ask(request: AskRequest, source: MediaSource) -> tuple[ChatMessage, ...]:
    """The simple door: one user turn, the clip before the question."""
    clip = MediaPart(kind="video", source=source, video=read_video_knobs(request.video))
    return (ChatMessage(role="user", parts=(clip, TextPart(text=request.prompt))),)


@dataclass(frozen=True, kw_only=True)
class MediaKnobs:
    """What the request says about all its clips, and about all its images."""

    video: VideoOptions
    image: VideoOptions


def _convert_part(part: Content, policy: MediaPolicy, ready: Ready, knobs: MediaKnobs, *, where: str) -> ContentPart:
    match part:
        case TextContent():
            return TextPart(text=part.text)
        case ImageContent():
            source = read_url(part.image_url.url, policy, param=f"{where}.image_url.url", ready=ready)
            return MediaPart(kind="image", source=source, video=knobs.image)
        case VideoContent():
            own = {"fps": part.video_url.fps, "max_frames": part.video_url.max_frames}
            param = f"{where}.video_url.url"
            source = read_url(part.video_url.url, policy, param=param, ready=ready, fps=part.video_url.fps)
            return MediaPart(kind="video", source=source, video=_override(knobs.video, own))
        case InputVideoContent():
            source = read_base64(part.input_video.data, policy, param=f"{where}.input_video.data")
            return MediaPart(kind="video", source=source, video=knobs.video)
        case FileContent():
            source = _read_file(part.file, policy, ready, where=f"{where}.file")
            kind = guess_kind(_read_head(source))
            return MediaPart(kind=kind, source=source, video=knobs.video if kind == "video" else knobs.image)


def _read_file(file: FileBody, policy: MediaPolicy, ready: Ready, *, where: str) -> MediaSource:
    if file.file_id is not None:
        return ready[FILE_ID_SCHEME + file.file_id]
    assert file.file_data is not None
    return read_base64(file.file_data, policy, param=f"{where}.file_data")


def _read_head(source: MediaSource) -> bytes:
    match source:
        case InlineBytes(data=data):
            return data[:HEAD_BYTES]
        case StoredFile(path=path):
            with open(path, "rb") as file:
                return file.read(HEAD_BYTES)
        case FrameList():
            return b""


def guess_kind(head: bytes) -> Literal["image", "video"]:
    """A `file` part does not say what it is, so its first bytes must."""
    is_picture = head.startswith(PICTURE_HEADS) or (head[:4], head[8:12]) == WEBP_HEAD
    return "image" if is_picture else "video"


# -------------------------------------------------------------------------------------------------------- the knobs


def merge_video_options(request: ChatRequest) -> VideoOptions:
    """`video` and vLLM's two names for the same bounds. Two of them may agree, but not differ."""
    sources: dict[str, Mapping[str, float | int | None]] = {}
    if request.video is not None:
        sources["video"] = request.video.model_dump()
    if request.mm_processor_kwargs is not None:
        sources["mm_processor_kwargs"] = request.mm_processor_kwargs.model_dump()
    if request.media_io_kwargs is not None and request.media_io_kwargs.video is not None:
        sources["media_io_kwargs.video"] = request.media_io_kwargs.video.model_dump()
    merged: dict[str, float | int | None] = {}
    origin: dict[str, str] = {}
    for name, knobs in sources.items():
        for key, value in knobs.items():
            if value is None:
                continue
            if merged.setdefault(key, value) != value:
                message = f"{origin[key]}.{key} ({merged[key]}) and {name}.{key} ({value}) differ"
                raise RequestError("invalid", message, param=f"{name}.{key}")
            origin.setdefault(key, name)
    return _override(VideoOptions(), merged)


def read_image_options(request: ChatRequest) -> VideoOptions:
    """`mm_processor_kwargs` are for whatever the processor is given; of its bounds, an image knows those on pixels."""
    knobs = request.mm_processor_kwargs
    return VideoOptions() if knobs is None else VideoOptions(min_pixels=knobs.min_pixels, max_pixels=knobs.max_pixels)


def read_video_knobs(knobs: VideoKnobs | None) -> VideoOptions:
    return VideoOptions() if knobs is None else _override(VideoOptions(), knobs.model_dump())


def _override(options: VideoOptions, values: Mapping[str, float | int | None]) -> VideoOptions:
    """What stands nearer to the clip wins."""
    known = {name: getattr(options, name) for name in options.__struct_fields__}
    return VideoOptions(**(known | {key: value for key, value in values.items() if value is not None}))


def convert_evs(knobs: EvsKnobs | None) -> EvsOptions:
    return EvsOptions() if knobs is None else EvsOptions(**knobs.model_dump())


def convert_sampling(request: SamplingFields, *, top_logprobs: int | None, vocab_size: int) -> SamplingParams:
    _check_token_ids("logit_bias", request.logit_bias or (), vocab_size)
    _check_token_ids("stop_token_ids", request.stop_token_ids or (), vocab_size)
    return SamplingParams(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=0 if request.top_k == -1 else request.top_k,  # both say "no limit"; None is the model's own default
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        logit_bias=request.logit_bias or None,
        seed=request.seed,
        max_tokens=request.limit_tokens,
        min_tokens=request.min_tokens or 0,
        stop_token_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=bool(request.ignore_eos),
        top_logprobs=top_logprobs,
    )


def _check_token_ids(name: str, token_ids: Sequence[int] | Mapping[int, float], vocab_size: int) -> None:
    bad = next((token_id for token_id in token_ids if not 0 <= token_id < vocab_size), None)
    if bad is not None:
        raise RequestError("invalid", f"token id {bad} is not below the vocabulary's size {vocab_size}", param=name)


def convert_text_options(
    request: SamplingFields, *, logprobs: bool | None, token_ids: bool | None = None
) -> TextOptions:
    return TextOptions(
        stops=tuple(request.stop or ()),
        stop_in_output="keep" if request.include_stop_str_in_output else "drop",
        min_tokens=request.min_tokens or 0,
        logprobs="report" if logprobs else "none",
        token_ids="report" if token_ids else "none",
    )
