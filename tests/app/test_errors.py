"""Errors: one table, OpenAI's shape, and never the client's payload or our insides in a message."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from pydantic import ValidationError

from app.errors import MAX_MESSAGE_CHARS, TABLE, ApiError, ClientGoneError, describe_error, error_response, name_field
from app.schemas import ChatRequest
from runner.errors import EngineDeadError, EngineSilentError, RequestError
from runner.messages import ErrorKind
from tests.app.conftest import user


def body_of(error: Exception) -> dict:
    return json.loads(bytes(error_response(error).body))["error"]


def test_table_covers_every_kind() -> None:
    assert set(TABLE) == set(get_args(ErrorKind))


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("invalid", 400),
        ("not_found", 404),
        ("too_large", 413),
        ("unsupported_media", 415),
        ("undecodable", 422),
        ("queue_full", 429),
        ("unavailable", 503),
        ("deadline", 504),
    ],
)
def test_request_errors_keep_their_words(kind: ErrorKind, status: int) -> None:
    error = RequestError(kind, "say what to do", param="messages")
    assert error_response(error).status_code == status
    assert body_of(error) == {
        "message": "say what to do",
        "type": TABLE[kind][1],
        "param": "messages",
        "code": kind,
    }


def test_full_queue_says_when_to_come_back() -> None:
    assert error_response(RequestError("queue_full", "busy")).headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RequestError("internal", "secret at 0x7f"), 500),
        (ValueError("secret at 0x7f"), 500),
        (EngineDeadError("secret at 0x7f"), 503),
        (EngineSilentError("secret at 0x7f"), 503),
        (ClientGoneError(), 499),
    ],
)
def test_our_own_faults_have_no_details(error: Exception, status: int) -> None:
    response = error_response(error)
    assert response.status_code == status
    assert b"secret" not in bytes(response.body)


def test_long_messages_are_cut() -> None:
    assert len(body_of(ApiError(400, "x" * 100_000))["message"]) == MAX_MESSAGE_CHARS


def describe(body: object) -> ApiError:
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate_json(body if isinstance(body, bytes) else json.dumps(body))
    error = describe_error(caught.value)
    assert error.status == 400
    assert len(json.dumps(body_of(caught.value))) < 2048
    return error


def test_validation_names_the_field() -> None:
    part = {"type": "video_url", "video_url": {"url": "data:,", "fps": "2"}}
    error = describe({"messages": user([{"type": "text", "text": "a"}, part])})
    assert error.param == "messages[0].content[1].video_url.fps"
    assert error.message == "'messages[0].content[1].video_url.fps': input should be a valid number"


@pytest.mark.parametrize(
    "body",
    [
        {"messages": user(), "x" * 100_000: 1},
        {"messages": user([{"type": "x" * 100_000}])},
        {"messages": user(), "temperature": "x" * 100_000},
        {"messages": user(), "evs": {"method": "x" * 100_000}},
        b'{"messages": "' + b"x" * 100_000,
        b"\xff" * 100_000,
        {"messages": [{"role": "user", "content": [{"type": "text"}] * 10_000}]},
    ],
)
def test_payload_is_never_repeated(body: object) -> None:
    assert "x" * 100 not in describe(body).message


@pytest.mark.parametrize(
    ("loc", "name"),
    [
        (("messages", 0, "content", 1, "video_url", "video_url", "fps"), "messages[0].content[1].video_url.fps"),
        (("messages", 0, "content", 1, "text", "text"), "messages[0].content[1].text"),
        (("messages", 0, "content", 1), "messages[0].content[1]"),
        (("stop", 2), "stop[2]"),
        (("evs", "rate"), "evs.rate"),
        ((), None),
    ],
)
def test_names_of_fields(loc: tuple[int | str, ...], name: str | None) -> None:
    assert name_field(loc) == name
