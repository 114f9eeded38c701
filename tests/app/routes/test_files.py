"""/v1/files in OpenAI's shapes, by the official client; used wherever a chat or a form may name a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from app.file_schemas import FileListQuery, file_page
from app.files import FileRecord
from runner.requests import MediaPart, StoredFile, VideoOptions
from tests.app.conftest import MakeClient, StartServer, list_uploads, user, wait_until
from tests.app.fake_engine import FakeEngine
from tests.app.routes.test_ask import CLIP, FORM, part

URL = "/v1/files"


def put(
    client: Any, data: dict[str, str] | None = None, clip: bytes = CLIP, name: str = "c.mp4", **options: Any
) -> Any:
    return client.post(URL, files={"file": (name, clip)}, data={"purpose": "user_data", **(data or {})}, **options)


def test_the_official_client(start_server: StartServer) -> None:
    """Create, list by pages, retrieve, read, delete: unmodified."""
    server = start_server()
    with server.openai() as client:
        first = client.files.create(
            file=("a.mp4", CLIP), purpose="vision", expires_after={"anchor": "created_at", "seconds": 3600}
        )
        second = client.files.create(file=("b.mp4", b"b"), purpose="user_data")
        assert (first.object, first.bytes, first.filename, first.purpose) == ("file", len(CLIP), "a.mp4", "vision")
        assert (first.status, first.expires_at) == ("processed", first.created_at + 3600)
        assert second.expires_at == second.created_at + 86400
        assert client.files.retrieve(first.id) == first
        assert [file.id for file in client.files.list()] == [second.id, first.id]
        assert [file.id for file in client.files.list(limit=1, order="asc")] == [first.id, second.id]
        assert [file.id for file in client.files.list(purpose="vision")] == [first.id]
        assert client.files.content(first.id).read() == CLIP
        assert client.files.wait_for_processing(first.id).id == first.id
        deleted = client.files.delete(first.id)
        assert (deleted.id, deleted.deleted, deleted.object) == (first.id, True, "file")
        for call in (client.files.retrieve, client.files.content, client.files.delete):
            with pytest.raises(openai.NotFoundError) as caught:
                call(first.id)
            assert caught.value.code == "file_not_found"
        assert len(list_uploads(server.media_dir)) == 1


def test_asked_about_everywhere(make_client: MakeClient) -> None:
    """As a part, as a URL, and on the simple door; the engine reads the same bytes, and the file stays."""
    engine = FakeEngine()
    client = make_client(engine)
    file_id = put(client).json()["id"]
    content = [
        {"type": "file", "file": {"file_id": file_id, "filename": "x"}},
        {"type": "video_url", "video_url": {"url": f"file-id://{file_id}", "fps": 3}},
        {"type": "image_url", "image_url": {"url": f"file-id://{file_id}"}},
        {"type": "input_video", "input_video": {"data": "Y2xpcA==", "format": "mp4"}},
    ]
    for stream in (False, True):
        body = {"messages": user(content), "stream": stream}
        assert client.post("/v1/chat/completions", json=body).status_code == 200
    assert client.post("/v1/videos/ask", files={"prompt": (None, "?"), "file_id": (None, file_id)}).status_code == 200
    assert engine.files == [CLIP] * 7
    parts = engine.requests[0].chat[0].parts
    assert [part.kind for part in parts] == ["video", "video", "image", "video"]
    assert [part.video for part in parts[:2]] == [VideoOptions(), VideoOptions(fps=3)]
    rendered = client.post("/v1/chat/completions/render", json={"messages": user(content)})
    assert rendered.status_code == 200
    source = engine.requests[-1].chat[0].parts[0].source
    assert isinstance(source, StoredFile) and Path(source.path).read_bytes() == CLIP
    assert client.get(f"{URL}/{file_id}").status_code == 200


@pytest.mark.parametrize(
    ("content", "param"),
    [
        ({"type": "file", "file": {"file_id": "file-none"}}, "messages[0].content[0].file.file_id"),
        ({"type": "video_url", "video_url": {"url": "file-id://file-none"}}, "messages[0].content[0].video_url.url"),
        (
            {"type": "video_url", "video_url": {"url": "file-id://../../etc/passwd"}},
            "messages[0].content[0].video_url.url",
        ),
        ({"type": "image_url", "image_url": {"url": "file-id://"}}, "messages[0].content[0].image_url.url"),
    ],
)
def test_unknown_files_are_404_and_named(make_client: MakeClient, content: dict[str, Any], param: str) -> None:
    engine = FakeEngine()
    client = make_client(engine)
    for path in ("/v1/chat/completions", "/v1/chat/completions/render"):
        response = client.post(path, json={"messages": user([content])})
        assert (response.status_code, response.json()["error"]["param"]) == (404, param)
        assert response.json()["error"]["code"] == "file_not_found"
    assert not engine.requests


def test_the_simple_door_takes_one_clip(make_client: MakeClient) -> None:
    client = make_client()
    both = client.post("/v1/videos/ask", files={"file": ("c", b"x")}, data={"prompt": "?", "file_id": "file-1"})
    assert (both.status_code, both.json()["error"]["param"]) == (400, "file_id")
    unknown = client.post("/v1/videos/ask", files={"prompt": (None, "?"), "file_id": (None, "file-1")})
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "file_id")


def test_a_file_belongs_to_its_key(make_client: MakeClient) -> None:
    client = make_client(api_key=["alpha", "beta"])
    alpha, beta = ({"Authorization": f"Bearer {key}"} for key in ("alpha", "beta"))
    file_id = put(client, headers=alpha).json()["id"]
    body = {"messages": user([{"type": "file", "file": {"file_id": file_id}}])}
    for headers, status in ((alpha, 200), (beta, 404), ({}, 401)):
        assert client.get(f"{URL}/{file_id}", headers=headers).status_code == status
        assert client.get(f"{URL}/{file_id}/content", headers=headers).status_code == status
        assert client.post("/v1/chat/completions", json=body, headers=headers).status_code == status
    assert client.get(URL, headers=beta).json()["data"] == []
    assert client.delete(f"{URL}/{file_id}", headers=beta).status_code == 404
    assert client.delete(f"{URL}/{file_id}", headers=alpha).status_code == 200


def test_deleted_while_a_request_reads_it(start_server: StartServer) -> None:
    """The request goes on; when it ends, the bytes are gone."""
    engine = FakeEngine("abcdef")
    gate = {"open": False}
    engine.step_gate = lambda place: place < 2 or gate["open"]
    server = start_server(engine)
    with server.openai() as client:
        file_id = client.files.create(file=("a.mp4", CLIP), purpose="vision").id
        messages: Any = user([{"type": "file", "file": {"file_id": file_id}}])
        stream = client.chat.completions.create(model="fake", messages=messages, stream=True)
        chunks = [next(stream)]
        client.files.delete(file_id)
        (source,) = (part.source for part in engine.requests[0].chat[0].parts if isinstance(part, MediaPart))
        assert isinstance(source, StoredFile) and Path(source.path).read_bytes() == CLIP
        gate["open"] = True
        chunks += list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "abcdef"
    assert wait_until(server.is_clean)


def test_content_is_saved_not_shown(make_client: MakeClient) -> None:
    """A browser that opens it must not run what somebody uploaded; part of it may be asked for."""
    client = make_client()
    file_id = put(client, clip=b"<script>alert(1)</script>", name="x.html").json()["id"]
    response = client.get(f"{URL}/{file_id}/content")
    assert response.headers["content-type"] == "application/octet-stream"
    assert response.headers["content-disposition"] == "attachment"
    assert response.headers["x-content-type-options"] == "nosniff"
    partial = client.get(f"{URL}/{file_id}/content", headers={"Range": "bytes=1-6"})
    assert (partial.status_code, partial.content) == (206, b"script")


@pytest.mark.parametrize(
    ("data", "param"),
    [
        ({"purpose": "batch"}, "purpose"),
        ({"purpose": ""}, "purpose"),
        ({"bogus": "1"}, "bogus"),
        ({"prompt": "x"}, "prompt"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "0"}, "expires_after.seconds"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "2592001"}, "expires_after.seconds"),
        ({"expires_after[anchor]": "last_used", "expires_after[seconds]": "60"}, "expires_after.anchor"),
        ({"expires_after[seconds]": "60"}, "expires_after.anchor"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "soon"}, "expires_after.seconds"),
    ],
)
def test_bad_fields_are_named_and_nothing_is_stored(
    make_client: MakeClient, tmp_path: Path, data: dict[str, str], param: str
) -> None:
    response = put(make_client(), data)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert list_uploads(tmp_path) == []


def test_missing_empty_and_too_large_files(make_client: MakeClient, tmp_path: Path) -> None:
    client = make_client(max_upload=1000)
    missing = client.post(URL, content=(part("purpose", "vision") + "--b--\r\n").encode(), headers=FORM)
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "file")
    assert put(client, clip=b"").json()["error"]["param"] == "file"
    large = put(client, clip=b"x" * 1001)
    assert (large.status_code, large.json()["error"]["param"]) == (413, "file")
    assert list_uploads(tmp_path) == []


@pytest.mark.parametrize(
    ("query", "param"),
    [("limit=0", "limit"), ("limit=x", "limit"), ("order=up", "order"), ("page=2", "page"), ("after=file-1", "after")],
)
def test_bad_queries_are_named(make_client: MakeClient, query: str, param: str) -> None:
    response = make_client().get(f"{URL}?{query}")
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_pages_join_to_the_whole() -> None:
    """Whatever the limit, going on after the last of each page gives every file once, in order."""
    records = [
        FileRecord(id=f"file-{n}", owner="", size=1, created_at=5, expires_at=9, filename="", purpose="vision")
        for n in range(7)
    ]
    for order, whole in (("asc", records), ("desc", records[::-1])):
        for limit in (1, 2, 3, 7, 8):
            seen: list[str] = []
            after = None
            while True:
                query = FileListQuery.model_validate({"limit": limit, "order": order, "after": after})
                page = file_page(records, query)
                seen += [entry["id"] for entry in page["data"]]
                after = page["last_id"]
                if not page["has_more"]:
                    break
            assert seen == [record.id for record in whole]
