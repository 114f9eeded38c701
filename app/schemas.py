"""Owns what a client may write: every field of every request body, its type and its bounds.

Knows nothing of the engine or of how a request is answered. Three lists cover every key of the OpenAI API and vLLM:

* honoured: all fields below that are not in the other two lists;
* accepted without effect, because common clients always send them: `user`, `metadata`, `store`, `service_tier`,
  `safety_identifier`, `prompt_cache_key`, `parallel_tool_calls`, `image_url.detail`, a message's `name`, a part's
  `uuid`, `input_video.format` and `file.filename` (bytes decide what a file is);
* refused with a 400 that names the key: everything else. OpenAI fields that are refused are declared as None below, so
  that a client which sends them as null is not turned away; a key nobody knows is refused even when it is null.

null means absent everywhere. Types are strict: "2" is not a number, true is not 1, NaN and infinity are refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

MAX_INT = 2**31 - 1
MAX_CHOICES = 16
MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_TOP_LOGPROBS = 20

Count = Annotated[int, Field(ge=1, le=MAX_INT)]
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
IGNORED_NOTE = "Accepted without effect."
REFUSED_NOTE = "Not supported: refused unless null."
Ignored = Annotated[Any, Field(description=IGNORED_NOTE)]
Refused = Annotated[None, Field(description=REFUSED_NOTE)]


class Strict(BaseModel):
    """Unknown keys, loose types and non-finite numbers are errors at every level."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True, protected_namespaces=())


# ------------------------------------------------------------------------------------------------------- the parts


class TextContent(Strict):
    type: Literal["text"]
    text: str


class ImageUrl(Strict):
    url: str
    detail: Ignored = None


class ImageContent(Strict):
    type: Literal["image_url"]
    image_url: ImageUrl
    uuid: Ignored = None


class VideoUrl(Strict):
    url: str
    fps: Annotated[float, Field(gt=0, le=1000)] | None = None
    max_frames: Count | None = None


class VideoContent(Strict):
    type: Literal["video_url"]
    video_url: VideoUrl
    uuid: Ignored = None


class FileBody(Strict):
    """Bytes as base64 or a data: URL, or the id of a stored file."""

    file_data: str | None = None
    file_id: Annotated[str, Field(max_length=256)] | None = None
    filename: Ignored = None

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.file_data is None) == (self.file_id is None):
            raise ValueError("give either file_id or file_data")
        return self


class FileContent(Strict):
    type: Literal["file"]
    file: FileBody


class InputVideo(Strict):
    data: str
    format: Ignored = None


class InputVideoContent(Strict):
    type: Literal["input_video"]
    input_video: InputVideo


Content = Annotated[
    TextContent | ImageContent | VideoContent | FileContent | InputVideoContent, Field(discriminator="type")
]


def _text_as_part(content: object) -> object:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


class Message(Strict):
    """One turn. An assistant's turn may carry the empty fields that clients echo back from an answer."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[list[Content], BeforeValidator(_text_as_part)] | None = None
    name: Ignored = None
    refusal: Refused = None
    annotations: Annotated[list[None], Field(max_length=0)] | None = None
    audio: Refused = None
    function_call: Refused = None
    tool_calls: Annotated[list[None], Field(max_length=0)] | None = None

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise ValueError("content is required: a string or a list of parts")
        if self.content == []:
            raise ValueError("content has no parts; give at least one")
        if self.role != "user" and any(part.type != "text" for part in self.content or []):
            raise ValueError(f"only a user message may hold media; this one is from {self.role!r}")
        return self


# ------------------------------------------------------------------------------------------------------- the knobs


class StreamOptions(Strict):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Literal[False] | None = None


class TextFormat(Strict):
    type: Literal["text"]


class VideoKnobs(Strict):
    fps: Annotated[float, Field(gt=0, le=1000)] | None = None
    max_frames: Count | None = None
    start_s: Annotated[float, Field(ge=0)] | None = None
    end_s: Annotated[float, Field(gt=0)] | None = None
    max_tokens: Count | None = None

    @model_validator(mode="after")
    def _check_span(self) -> Self:
        if self.end_s is not None and self.end_s <= (self.start_s or 0.0):
            raise ValueError(f"end_s ({self.end_s}) must be after start_s ({self.start_s or 0.0})")
        return self


class ProcessorKnobs(Strict):
    """vLLM's `mm_processor_kwargs` and `media_io_kwargs.video`: other names for the same bounds."""

    fps: Annotated[float, Field(gt=0, le=1000)] | None = None
    num_frames: Count | None = None
    min_pixels: Count | None = None
    max_pixels: Count | None = None


class MediaIoKnobs(Strict):
    video: ProcessorKnobs | None = None


class EvsKnobs(Strict):
    method: Literal["none", "gate", "evs", "uniform", "random"] | None = None
    rate: Annotated[float, Field(ge=0, lt=1)] | None = None
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    refresh: Count | None = None
    encoder: Literal["full", "skip", "reuse"] | None = None
    seed: Seed | None = None


StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]


def _one_stop_as_list(stop: object) -> object:
    return [stop] if isinstance(stop, str) else stop


class SamplingFields(Strict):
    """Fields that the chat route and the simple door share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_INT)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: Annotated[dict[int, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=1024)] | None = None
    seed: Seed | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
    stop: Annotated[list[StopString], BeforeValidator(_one_stop_as_list), Field(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0, le=MAX_INT)]], Field(max_length=128)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] | None = None
    evs: EvsKnobs | None = None
    video: VideoKnobs | None = None
    user: Ignored = None
    metadata: Ignored = None

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) == 2:
            raise ValueError(
                f"max_tokens ({self.max_tokens}) and max_completion_tokens ({self.max_completion_tokens}) differ; "
                "send one of them"
            )
        limit = self.limit_tokens
        if limit is not None and (self.min_tokens or 0) > limit:
            raise ValueError(f"min_tokens ({self.min_tokens}) is more than max_tokens ({limit})")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only for stream: true")
        return self

    @property
    def limit_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class AskRequest(SamplingFields):
    """`POST /v1/videos/ask`, beside its `file`, which `file_id` may stand in for."""

    prompt: Annotated[str, Field(min_length=1)]
    file_id: Annotated[str, Field(max_length=256)] | None = None


class OverlayRequest(Strict):
    """`POST /v1/videos/overlay`, beside its `file`."""

    file_id: str | None = None
    model: str | None = None
    evs: EvsKnobs | None = None
    video: VideoKnobs | None = None
    format: Literal["png", "webp"] | None = None


class ChatRequest(SamplingFields):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=4096)]
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    return_token_ids: bool | None = None
    priority: Annotated[int, Field(ge=-MAX_INT, le=MAX_INT)] | None = None
    media_io_kwargs: MediaIoKnobs | None = None
    mm_processor_kwargs: ProcessorKnobs | None = None
    response_format: TextFormat | None = None
    modalities: list[Literal["text"]] | None = None
    store: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    parallel_tool_calls: Ignored = None
    tools: Refused = None
    tool_choice: Literal["none"] | None = None
    functions: Refused = None
    function_call: Refused = None
    audio: Refused = None
    prediction: Refused = None
    reasoning_effort: Refused = None
    verbosity: Refused = None
    web_search_options: Refused = None
    prompt_cache_retention: Refused = None

    @model_validator(mode="after")
    def _check_chat(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        parts = [part for message in self.messages for part in message.content or []]
        if not any(part.type != "text" or part.text for part in parts):
            raise ValueError("messages hold no text and no media; there is nothing to answer")
        return self


class RenderRequest(ChatRequest):
    """`POST /v1/chat/completions/render`: a chat request as it is; generation fields are checked but not used."""

    include: list[Literal["frames"]] | None = None
