"""Owns the step from a checked HTTP request to the engine's plain data.

Knows nothing of HTTP or pydantic's rules (app/schemas.py has checked those) and nothing of models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from app.answer import TextOptions
from app.media import MediaPolicy, read_base64, read_url
from app.schemas import (
    AskRequest,
    ChatRequest,
    Content,
    EvsKnobs,
    FileContent,
    ImageContent,
    InputVideoContent,
    SamplingFields,
    TextContent,
    VideoContent,
)
from runner.errors import RequestError
from runner.requests import (
    ChatMessage,
    ContentPart,
    EvsOptions,
    MediaPart,
    MediaSource,
    SamplingParams,
    TextPart,
    VideoOptions,
)

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")


# --------------------------------------------------------------------------------------------------------- the chat


def convert_chat(request: ChatRequest, policy: MediaPolicy, *, max_media_items: int) -> tuple[ChatMessage, ...]:
    """Messages with their media decoded; slow for large payloads, so call it in a thread."""
    count = sum(part.type != "text" for message in request.messages for part in message.content or [])
    if count > max_media_items:
        raise RequestError(
            "invalid", f"the chat holds {count} images and videos; the limit is {max_media_items}", param="messages"
        )
    video = merge_video_options(request)
    return tuple(
        ChatMessage(
            role=message.role,
            parts=tuple(
                _convert_part(part, policy, video, where=f"messages[{turn}].content[{place}]")
                for place, part in enumerate(message.content or [])
            ),
        )
        for turn, message in enumerate(request.messages)
    )


def convert_ask(request: AskRequest, source: MediaSource) -> tuple[ChatMessage, ...]:
    """The simple door: one user turn, the clip before the question."""
    clip = MediaPart(kind="video", source=source, video=_read_video_knobs(request))
    return (ChatMessage(role="user", parts=(clip, TextPart(text=request.prompt))),)


def _convert_part(part: Content, policy: MediaPolicy, video: VideoOptions, *, where: str) -> ContentPart:
    match part:
        case TextContent():
            return TextPart(text=part.text)
        case ImageContent():
            return MediaPart(kind="image", source=read_url(part.image_url.url, policy, param=f"{where}.image_url.url"))
        case VideoContent():
            own = {"fps": part.video_url.fps, "max_frames": part.video_url.max_frames}
            source = read_url(part.video_url.url, policy, param=f"{where}.video_url.url", fps=part.video_url.fps)
            return MediaPart(kind="video", source=source, video=_override(video, own))
        case InputVideoContent():
            source = read_base64(part.input_video.data, policy, param=f"{where}.input_video.data")
            return MediaPart(kind="video", source=source, video=video)
        case FileContent():
            return _convert_file(part, policy, video, where=f"{where}.file")


def _convert_file(part: FileContent, policy: MediaPolicy, video: VideoOptions, *, where: str) -> MediaPart:
    data = part.file.file_data
    if data is None:
        raise RequestError("invalid", "file_data is required: base64 or a data: URL", param=f"{where}.file_data")
    source = read_base64(data, policy, param=f"{where}.file_data")
    kind = guess_kind(data[:64], part.file.filename or "")
    return MediaPart(kind=kind, source=source, video=video if kind == "video" else VideoOptions())


def guess_kind(head: str, filename: str) -> Literal["image", "video"]:
    """A `file` part does not say what it is, so its declared type or its name must; a video when neither does."""
    image = head.lower().startswith("data:image/") or filename.lower().endswith(IMAGE_SUFFIXES)
    return "image" if image else "video"


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


def _read_video_knobs(request: SamplingFields) -> VideoOptions:
    return VideoOptions() if request.video is None else _override(VideoOptions(), request.video.model_dump())


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
