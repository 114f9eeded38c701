"""Owns the OpenAI error object and the one table that turns an error's kind into an HTTP status.

Knows nothing of engines at work, media or routes. Messages are short and never repeat what the client sent in bulk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi.responses import JSONResponse
from pydantic import ValidationError

from runner.errors import EngineDeadError, EngineSilentError, RequestError
from runner.messages import ErrorKind

MAX_MESSAGE_CHARS = 1000
MAX_NAME_CHARS = 64
RETRY_AFTER_S = 1
CLIENT_CLOSED_REQUEST = 499  # nobody reads it; it is what the log and the metrics say

TABLE: dict[ErrorKind, tuple[int, str]] = {
    "invalid": (400, "invalid_request_error"),
    "not_found": (404, "invalid_request_error"),
    "too_large": (413, "invalid_request_error"),
    "unsupported_media": (415, "invalid_request_error"),
    "undecodable": (422, "invalid_request_error"),
    "queue_full": (429, "rate_limit_error"),
    "deadline": (504, "server_error"),
    "unavailable": (503, "server_error"),
    "internal": (500, "server_error"),
}
INTERNAL_MESSAGE = "the server failed on this request; it was logged, and trying again may help"
SILENT_MESSAGE = "the engine does not answer; try again later"
DEAD_MESSAGE = "the engine has stopped; the server has to be restarted"

CONTENT_TYPES = ("text", "image_url", "video_url", "file", "input_video")

# OpenAI's codes for what pydantic finds; all else is an "invalid_value".
CODES = {
    "extra_forbidden": "unknown_parameter",
    "none_required": "unsupported_parameter",
    "missing": "missing_required_parameter",
    "json_invalid": "invalid_json",
}

# Knobs people put one level too high; a silently ignored fps costs days, a bare "unknown field" costs minutes.
HINTS = {
    "fps": "video.fps",
    "num_frames": "mm_processor_kwargs.num_frames",
    "max_frames": "video.max_frames",
    "start_s": "video.start_s",
    "end_s": "video.end_s",
    "rate": "evs.rate",
    "method": "evs.method",
    "threshold": "evs.threshold",
}


@dataclass(eq=False)  # not frozen: Python itself sets an exception's traceback on its way through a `with`
class ApiError(Exception):
    """An answer other than 200 that no ErrorKind describes: keys, methods, slow bodies, full disks."""

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class ClientGoneError(Exception):
    """The client hung up; there is nobody to answer."""


def describe_error(error: Exception) -> ApiError:
    """Translate anything a route may raise; what is not ours to explain becomes a 500 without details."""
    match error:
        case ApiError():
            return error
        case RequestError():
            status, kind = TABLE[error.kind]
            message = INTERNAL_MESSAGE if error.kind == "internal" else error.message
            headers = {"Retry-After": str(RETRY_AFTER_S)} if status in (429, 503) else {}
            return ApiError(status, message, kind, error.param, error.code or error.kind, headers)
        case EngineSilentError():
            headers = {"Retry-After": str(RETRY_AFTER_S)}
            return ApiError(503, SILENT_MESSAGE, "server_error", None, "engine_silent", headers)
        case EngineDeadError():
            return ApiError(503, DEAD_MESSAGE, "server_error", None, "engine_dead")
        case ValidationError():
            return describe_validation(error)
        case ClientGoneError():
            return ApiError(CLIENT_CLOSED_REQUEST, "the client closed the request")
        case _:
            return ApiError(500, INTERNAL_MESSAGE, "server_error", None, "internal")


def error_body(error: ApiError) -> dict[str, Any]:
    message = error.message
    if len(message) > MAX_MESSAGE_CHARS:
        message = message[: MAX_MESSAGE_CHARS - 3] + "..."
    return {"error": {"message": message, "type": error.type, "param": error.param, "code": error.code}}


def error_response(error: Exception) -> JSONResponse:
    described = describe_error(error)
    return JSONResponse(error_body(described), described.status, headers=dict(described.headers))


# ------------------------------------------------------------------------------------------------ pydantic's errors


def describe_validation(error: ValidationError) -> ApiError:
    """The first thing wrong, by name. The value itself is never shown: it may be a whole video."""
    details = error.errors(include_url=False, include_input=False, include_context=True)
    first = details[0]
    param = name_field(first["loc"])
    text = _explain(first["type"], first["msg"], param, first["loc"])
    if len(details) > 1:
        text += f" (and {len(details) - 1} more)"
    code = CODES.get(first["type"], "invalid_value")
    return ApiError(400, text, "invalid_request_error", param, code)


def name_field(loc: Sequence[int | str]) -> str | None:
    """('messages', 0, 'content', 1, 'video_url', 'video_url', 'fps') -> messages[0].content[1].video_url.fps

    The element after a content index is the tag of the part's union, not a key the client wrote.
    """
    name = ""
    for place, step in enumerate(loc):
        if place == 4 and loc[0] == "messages" and loc[2] == "content":
            continue
        if isinstance(step, int):
            name += f"[{step}]"
        else:
            step = step if len(step) <= MAX_NAME_CHARS else step[:MAX_NAME_CHARS] + "..."
            name += f".{step}" if name else step
    return name or None


def _explain(kind: str, message: str, param: str | None, loc: Sequence[int | str]) -> str:
    if kind == "json_invalid":
        return "the body is not valid JSON: " + message.removeprefix("Invalid JSON: ")
    name = param or "the body"
    if kind in ("extra_forbidden", "none_required"):
        known = HINTS.get(str(loc[-1])) if len(loc) == 1 and kind == "extra_forbidden" else None
        hint = f"; did you mean {known}?" if known else "; remove it"
        return f"{name!r} is not supported by this server{hint}"
    if kind == "missing":
        return f"{name!r} is required"
    if kind.startswith("union_tag"):  # pydantic's words would repeat the tag, which may be of any length
        return f"{name!r} needs a 'type' that is one of {', '.join(CONTENT_TYPES)}"
    message = message.removeprefix("Value error, ")
    return f"{name!r}: {message[:1].lower()}{message[1:]}"
