"""Owns what a client may write to `POST /v1/embeddings`.

Knows nothing of the engine. As everywhere, null means absent and a key that is not listed is refused by name. Three
ways to say what is to be embedded: `input` (text or token ids, OpenAI's way), `messages` (one chat with pictures or
clips), and `video` with `window` (one vector for each stretch of a clip).
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from app.schemas import Count, EvsKnobs, Ignored, MediaIoKnobs, Message, ProcessorKnobs, Refused, Strict

MAX_INPUTS = 2048
MAX_INT = 2**31 - 1

Tokens = Annotated[list[Annotated[int, Field(ge=0, le=MAX_INT)]], Field(min_length=1)]
Text = Annotated[str, Field(min_length=1)]


def _one_as_list(value: object) -> object:
    """One text, or one list of token ids, is a list of one input."""
    if isinstance(value, str) or (isinstance(value, list) and value and isinstance(value[0], int)):
        return [value]
    return value


class WindowKnobs(Strict):
    """Lengths are rounded to whole slots of the model; what is in force is reported."""

    duration_s: Annotated[float, Field(gt=0)] | None = None
    stride_s: Annotated[float, Field(gt=0)] | None = None
    fps: Annotated[float, Field(gt=0)] | None = None
    max_frames: Count | None = None


class VideoInput(Strict):
    """fps: of a list of pictures (`data:video/jpeg;base64,...`)."""

    url: str
    fps: Annotated[float, Field(gt=0, le=1000)] | None = None


def _url_as_object(value: object) -> object:
    return {"url": value} if isinstance(value, str) else value


class EmbeddingRequest(Strict):
    """`POST /v1/embeddings`."""

    model: str | None = None
    input: Annotated[
        list[Text] | list[Tokens], BeforeValidator(_one_as_list), Field(min_length=1, max_length=MAX_INPUTS)
    ] | None = None  # fmt: skip
    messages: Annotated[list[Message], Field(min_length=1, max_length=4096)] | None = None
    video: Annotated[VideoInput, BeforeValidator(_url_as_object)] | None = None
    window: WindowKnobs | None = None
    stream: bool | None = None
    gate_windows: bool | None = None
    instruction: Text | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Count | None = None
    normalize: bool | None = None
    evs: EvsKnobs | None = None
    priority: Annotated[int, Field(ge=-MAX_INT, le=MAX_INT)] | None = None
    media_io_kwargs: MediaIoKnobs | None = None
    mm_processor_kwargs: ProcessorKnobs | None = None
    user: Ignored = None
    truncate_prompt_tokens: Refused = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        given = [name for name in ("input", "messages", "video") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of input, messages and video, not {' and '.join(given) or 'none of them'}")
        if self.video is None:
            misplaced = [name for name in ("window", "stream", "gate_windows") if getattr(self, name) is not None]
            if misplaced:
                raise ValueError(f"{misplaced[0]} is only for video; a clip in messages gives one vector")
        if self.video is not None and (self.media_io_kwargs or self.mm_processor_kwargs):
            raise ValueError("windows are sampled as window says; media_io_kwargs and mm_processor_kwargs do nothing")
        return self
