"""Owns what a client may say over `WS /v1/realtime`: each event, its fields and their bounds.

Knows nothing of sessions. As over HTTP, null means absent and a key that is not listed is refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, model_validator

from app.embedding_schemas import Text, WindowKnobs
from app.schemas import Count, EvsKnobs, Ignored, Strict

EventId = Annotated[str, Field(max_length=256)] | None


class InputKnobs(Strict):
    """format "auto": the first bytes decide. timestamps "client": each picture brings its own; "server": when it came.
    Without it, the first picture decides."""

    format: Literal["auto", "image", "jpeg", "png", "webp", "video", "mp4", "webm", "mpegts"] | None = None
    timestamps: Literal["client", "server"] | None = None


class OutputKnobs(Strict):
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Count | None = None
    normalize: bool | None = None
    include: Annotated[list[Literal["evs", "latency"]], Field(max_length=2)] | None = None


class SessionKnobs(Strict):
    type: Literal["embedding"]
    model: str | None = None
    input: InputKnobs | None = None
    window: WindowKnobs | None = None
    evs: EvsKnobs | None = None
    gate_windows: bool | None = None
    output: OutputKnobs | None = None
    overload: Literal["wait", "drop_oldest", "drop_newest", "error"] | None = None
    instruction: Text | None = None


class SessionUpdate(Strict):
    type: Literal["session.update"]
    event_id: EventId = None
    session: SessionKnobs


class Append(Strict):
    """One picture, or the next bytes of a container, as base64."""

    type: Literal["input_video_buffer.append"]
    event_id: EventId = None
    image: str | None = None
    video: str | None = None
    timestamp_s: Annotated[float, Field(ge=0, le=1e12)] | None = None
    seq: Annotated[int, Field(ge=0, lt=2**53)] | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Append:
        if (self.image is None) == (self.video is None):
            raise ValueError("give either image or video")
        if self.video is not None and (self.timestamp_s is not None or self.seq is not None):
            raise ValueError("a container brings its own times and order; leave timestamp_s and seq out")
        return self


class Commit(Strict):
    type: Literal["input_video_buffer.commit"]
    event_id: EventId = None


class Clear(Strict):
    type: Literal["input_video_buffer.clear"]
    event_id: EventId = None


class EmbedText(Strict):
    type: Literal["input_text.embed"]
    event_id: EventId = None
    text: Text
    instruction: Text | None = None
    metadata: Ignored = None


ClientEvent = SessionUpdate | Append | Commit | Clear | EmbedText
_EVENTS: TypeAdapter[ClientEvent] = TypeAdapter(Annotated[ClientEvent, Field(discriminator="type")])


def parse_event(text: str) -> ClientEvent:
    """Raises pydantic's ValidationError."""
    return _EVENTS.validate_json(text)


def event_id_of(text: str) -> str | None:
    """The id of an event that could not be read otherwise, where it can be found."""
    try:
        found: Any = TypeAdapter(dict[str, Any]).validate_json(text).get("event_id")
    except ValueError:
        return None
    return found if isinstance(found, str) and len(found) <= 256 else None
