"""The reference page says of every field what the server does with it, and needs nobody else to say it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from app.openapi import describe_body
from app.realtime import session
from app.realtime.events import ClientEvent
from app.reference import FieldNote, list_fields, render_reference, spell_type
from app.schemas import ChatRequest, EvsKnobs
from tests.app.conftest import MakeClient, user


def chat_fields() -> dict[str, FieldNote]:
    schema = describe_body(ChatRequest)["requestBody"]["content"]["application/json"]["schema"]
    return {note.name: note for note in list_fields(schema)}


@pytest.mark.parametrize(
    ("name", "fate", "kind"),
    [
        ("temperature", "honoured", "number >= 0, <= 2"),
        ("evs.rate", "honoured", "number >= 0, < 1"),
        ("messages[].content[].video_url.fps", "honoured", "number > 0, <= 1000"),
        ("messages[].content[].file.file_id", "honoured", "string"),
        ("messages[].role", "honoured", "'system' | 'developer' | 'user' | 'assistant'"),
        ("stop", "honoured", "list of string"),
        ("user", "ignored", None),
        ("messages[].content[].image_url.detail", "ignored", None),
        ("tools", "refused", None),
        ("messages[].audio", "refused", None),
    ],
)
def test_fields_and_their_fate(name: str, fate: str, kind: str | None) -> None:
    note = chat_fields()[name]
    assert note.fate == fate
    if kind is not None:
        assert note.kind == kind


def test_the_lists_say_what_the_server_does(make_client: MakeClient) -> None:
    """Each field at the top: the ignored may hold anything, the refused are a 400 that names them."""
    client = make_client()
    top = [note for note in chat_fields().values() if "." not in note.name and "[" not in note.name]
    assert len([note for note in top if note.fate == "refused"]) > 5
    for note in top:
        body: dict[str, Any] = {"messages": user(), note.name: {"any": "thing"}}
        response = client.post("/v1/chat/completions", json=body)
        if note.fate == "ignored":
            assert response.status_code == 200, note
        else:
            assert response.json()["error"]["param"].startswith(note.name), note


def test_every_part_of_a_body_is_listed() -> None:
    assert {f"evs.{name}" for name in EvsKnobs.model_fields} <= chat_fields().keys()


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"anyOf": [{"type": "integer", "minimum": 1, "maximum": 2**31 - 1}, {"type": "null"}]}, "integer >= 1"),
        ({"enum": ["a", "b"]}, "'a' | 'b'"),
        ({"const": False}, "false"),
        ({"type": "array", "items": {"type": "string"}}, "list of string"),
        ({}, "any"),
    ],
)
def test_types(schema: dict[str, Any], kind: str) -> None:
    assert spell_type(schema) == kind


def test_the_page(make_client: MakeClient) -> None:
    """All routes, all three lists, no script, no other server; what stands in a description is text, not markup."""
    client = make_client()
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert "<script" not in page.text and not re.findall(r"(?:https?:)?//[\w.]+\.\w+", page.text)
    for words in (
        "Honoured",
        "Accepted without effect",
        "Refused",
        "POST /v1/files",
        "GET /v1/files/{file_id}/content",
    ):
        assert words in page.text
    paths = client.get("/openapi.json").json()["paths"]
    assert all(f"{method.upper()} {path}" in page.text for path, methods in paths.items() for method in methods)
    evil = {"info": {"title": "<b>", "version": "1"}, "paths": {"/<i>": {"get": {"description": "<u> `<s>`"}}}}
    shown = render_reference(evil)
    assert not any(tag in shown for tag in ("<b>1", "<i>", "<u>", "<s>"))


def test_the_socket_is_described(make_client: MakeClient) -> None:
    """Every event that a client may send, with its fields, is the one that is parsed; every one that a session sends
    is named; and both the page and the document say so."""
    client = make_client()
    socket = client.get("/openapi.json").json()["x-websockets"]["/v1/realtime"]
    parsed = TypeAdapter(ClientEvent).json_schema()["$defs"]
    kinds = [schema["properties"]["type"]["const"] for schema in parsed.values() if "event_id" in schema["properties"]]
    assert set(socket["client_events"]) == set(kinds) and len(kinds) == 5
    files = [path for path in Path(session.__file__).parent.glob("*.py") if path.name != "describe.py"]
    sources = "".join(path.read_text() for path in files)
    sent = set(re.findall(r'"((?:session|embedding)\.[a-z]+|input_video_buffer\.dropped|error)"', sources))
    assert sent - set(socket["client_events"]) <= set(socket["server_events"]) and len(sent) > 6
    page = client.get("/docs").text
    for words in ("WS /v1/realtime", "session.evs.encoder", "timestamp_s", "input_video_buffer.dropped", "1013"):
        assert words in page
