"""Owns what /docs says of `WS /v1/realtime`, which OpenAPI has no words for: each event in either direction.

Knows nothing of sessions. The fields of clients' events are read from the types that parse them.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from app.openapi import inline_refs
from app.realtime.events import Append, Clear, Commit, EmbedText, SessionUpdate

PATH = "/v1/realtime"
_ABOUT = (
    "Live video in, a vector for each window out, in the event envelope of OpenAI's realtime API, so that its client "
    "can speak here: `realtime.connect(model=...)`. Text messages are JSON events; a binary message is media: one "
    "JPEG, PNG or WebP picture, or the next bytes of one fragmented MP4, WebM or MPEG-TS stream. Every frame stands in "
    "a window or is named in one `input_video_buffer.dropped`. A wrong event is answered by `error` and changes "
    "nothing; what ends a session is said before the socket is closed."
)
_CLIENT: tuple[tuple[type[BaseModel], str], ...] = (
    (SessionUpdate, "Set what is given, before a part's first media; the answer is `session.updated`."),
    (Append, "One picture, with its time and number if the client keeps them, or the next bytes of a stream."),
    (Commit, "The end of a part: what came is embedded. What follows is a new part."),
    (Clear, "The end of a part: what is in no window yet is dropped."),
    (EmbedText, "A text's vector beside the windows', for search while the stream runs."),
)
_SERVER = {
    "session.created": "The session, its limits and the width of vectors.",
    "session.updated": "The values in force, which may differ from those asked for.",
    "embedding.done": "A window's vector with its times and its frames' numbers, or a text's, whose index is null.",
    "input_video_buffer.dropped": (
        "Frames in no window and why: `sampled_out`, `duplicate`, `decode_error`, `unchanged`, `overload`, `closed`."
    ),
    "input_video_buffer.committed": "After the last window of a part that was committed.",
    "input_video_buffer.cleared": "After the last drop of a part that was cleared.",
    "session.expiring": "The session will end soon: it is old, or the server stops.",
    "session.stats": "What the session did, before it is closed.",
    "error": "What was wrong, with the event's id. The last one before a close says why.",
}
_CLOSES = {
    1000: "silent or old for too long, or the client went",
    1001: "the server stops",
    1008: "media or events that cannot be read",
    1011: "the server's own fault",
    1013: "too many sessions, or overload: come again later",
}


def describe_sockets() -> dict[str, Any]:
    """The value of `x-websockets` in the OpenAPI document: sockets by path."""
    events = {
        str(model.model_fields["type"].annotation.__args__[0]): {  # type: ignore[union-attr]
            "description": text, "schema": inline_refs(model.model_json_schema())
        }
        for model, text in _CLIENT
    }  # fmt: skip
    return {
        PATH: {
            "description": _ABOUT,
            "parameters": [{"name": "model", "in": "query", "schema": {"type": "string"}}],
            "client_events": events,
            "server_events": _SERVER,
            "close_codes": {str(code): text for code, text in _CLOSES.items()},
        }
    }
