"""The simple door: one file, one question; bounded, and nothing left on disk however it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.multipart import MAX_PARTS, MAX_TEXT_BYTES
from runner.errors import RequestError
from runner.requests import EvsOptions, VideoOptions
from tests.app.conftest import MakeClient, list_uploads
from tests.app.fake_engine import FakeEngine
from tests.app.routes.test_chat import content_of, read_events

URL = "/v1/videos/ask"
CLIP = bytes(range(256)) * 5000
FORM = {"content-type": "multipart/form-data; boundary=b"}


def ask(client: Any, data: dict[str, str] | None = None, clip: bytes = CLIP, name: str = "clip.mp4") -> Any:
    return client.post(URL, files={"file": (name, clip)}, data={"prompt": "what?"} | (data or {}))


def part(name: str, text: str, filename: str | None = None) -> str:
    extra = f'; filename="{filename}"' if filename is not None else ""
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n\r\n{text}\r\n'


def test_answer(make_client: MakeClient, tmp_path: Path) -> None:
    engine = FakeEngine("a car")
    response = ask(make_client(engine), {"evs.rate": "0.5", "video.fps": "2", "temperature": "0"})
    body = response.json()
    assert body.keys() == {"id", "object", "created", "model", "answer", "finish_reason", "usage"}
    assert (body["object"], body["answer"], body["finish_reason"]) == ("video.answer", "a car", "stop")
    assert engine.files == [CLIP]
    (request,) = engine.requests
    assert request.chat[0].parts[0].video == VideoOptions(fps=2)
    assert request.evs == EvsOptions(rate=0.5)
    assert request.sampling.temperature == 0
    assert list_uploads(tmp_path) == []


def test_stream_is_the_chat_routes_stream(make_client: MakeClient, tmp_path: Path) -> None:
    response = ask(make_client(FakeEngine("a car")), {"stream": "true", "stream_options.include_usage": "true"})
    events = read_events(response.text)
    assert content_of(events) == "a car"
    assert events[-2]["usage"]["video"]
    assert events[-1] == "[DONE]"
    assert list_uploads(tmp_path) == []


@pytest.mark.parametrize(
    "name", ["../../x.mp4", "/etc/passwd", "%03d.mp4", "$(id).mp4", "-y.mp4", "видео — 🎬.mp4", "n" * 244, "a\\..\\b"]
)
def test_file_names_of_clients_are_never_used(make_client: MakeClient, tmp_path: Path, name: str) -> None:
    before = {path for path in tmp_path.parent.rglob("*") if tmp_path not in path.parents}
    engine = FakeEngine()
    assert ask(make_client(engine), name=name).status_code == 200
    assert engine.files == [CLIP]
    assert engine.requests[0].chat[0].parts[0].source.path.endswith("/media")
    assert before == {path for path in tmp_path.parent.rglob("*") if tmp_path not in path.parents}


def test_raw_and_rfc5987_file_names(make_client: MakeClient) -> None:
    for header in ('filename="\u0432.mp4"', "filename*=UTF-8''%D0%B2.mp4"):
        body = f'--b\r\nContent-Disposition: form-data; name="file"; {header}\r\n\r\nclip\r\n' + part("prompt", "a")
        response = make_client().post(URL, content=(body + "--b--\r\n").encode(), headers=FORM)
        assert response.status_code == 200


@pytest.mark.parametrize(
    ("data", "param"),
    [
        ({"bogus": "1"}, "bogus"),
        ({"fps": "2"}, "fps"),
        ({"n": "2"}, "n"),
        ({"evs.bogus": "1"}, "evs.bogus"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": "NaN"}, "temperature"),
        ({"prompt": ""}, "prompt"),
        ({"model": "other"}, "model"),
    ],
)
def test_bad_fields_are_named_and_leave_nothing(
    make_client: MakeClient, tmp_path: Path, data: dict[str, str], param: str
) -> None:
    engine = FakeEngine()
    response = ask(make_client(engine), data)
    assert response.status_code in (400, 404)
    assert response.json()["error"]["param"] == param
    assert not engine.requests
    assert list_uploads(tmp_path) == []


def test_engine_refusal_leaves_nothing(make_client: MakeClient, tmp_path: Path) -> None:
    engine = FakeEngine(refuses=RequestError("undecodable", "no video stream"))
    client = make_client(engine)
    for stream in ("true", "false"):
        assert ask(client, {"stream": stream}).status_code == 422
    assert list_uploads(tmp_path) == []


def test_file_limit_counts_bytes(make_client: MakeClient, tmp_path: Path) -> None:
    """With a claimed length and without; the message names the limit."""
    client = make_client(max_upload=1000)
    assert ask(client, clip=b"x" * 1000).status_code == 200
    response = ask(client, clip=b"x" * 1001)
    assert response.status_code == 413
    assert "1000 bytes" in response.json()["error"]["message"]
    head = (part("prompt", "a") + part("file", "", "x").removesuffix("\r\n")).encode()
    chunked = client.post(URL, content=iter([head, *[b"x" * 100] * 11]), headers=FORM)
    assert chunked.status_code == 413
    assert list_uploads(tmp_path) == []


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (part("prompt", "a") + "--b--\r\n", 400, "file"),
        (part("file", "", "x") + part("prompt", "a") + "--b--\r\n", 400, "file"),
        (part("file", "clip", "x") + "--b--\r\n", 400, "prompt"),
        (part("file", "text") + "--b--\r\n", 400, "file"),
        (part("prompt", "a", "x") + "--b--\r\n", 400, "prompt"),
        (part("prompt", "a") + part("prompt", "b") + "--b--\r\n", 400, "prompt"),
        (part("file", "a", "x") + part("file", "b", "x") + "--b--\r\n", 400, "file"),
        (part("file", "a", "x") + "--b\r\n\r\nno name\r\n--b--\r\n", 400, None),
        (part("file", "a", "x") + part("prompt", "a"), 400, None),
        ("--b\r\nbroken", 400, None),
        ("no boundary", 400, None),
        ("", 400, None),
        ("".join(part(f"x{i}", "a") for i in range(MAX_PARTS + 1)), 413, None),
        (part("prompt", "a" * (MAX_TEXT_BYTES + 1)), 413, "prompt"),
        (part("file", "a", "x") + "--b\r\n" + "X: y\r\n" * 10_000, 400, None),
    ],
)
def test_malformed_forms(make_client: MakeClient, tmp_path: Path, body: str, status: int, param: str | None) -> None:
    response = make_client().post(URL, content=body.encode(), headers=FORM)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)
    assert list_uploads(tmp_path) == []


def test_other_content_types_are_refused(make_client: MakeClient) -> None:
    for kind in ("application/json", "multipart/form-data", "application/x-www-form-urlencoded", ""):
        response = make_client().post(URL, content=b"{}", headers={"content-type": kind})
        assert response.status_code == 415
    not_utf8 = b'--b\r\nContent-Disposition: form-data; name="prompt"\r\n\r\n\xff\r\n--b--\r\n'
    assert make_client().post(URL, content=not_utf8, headers=FORM).json()["error"]["param"] == "prompt"
