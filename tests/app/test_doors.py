"""The doors for media, from outside: what is public knowledge about breaking them, tried over HTTP.

Each case ends in a 4xx of OpenAI's shape (507 for a full disk), with nothing dialled, read or left that should not be.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.addresses import Network
from runner.errors import RequestError
from runner.requests import InlineBytes
from tests.app.conftest import MakeClient, StartServer, list_uploads, user, wait_until
from tests.app.fake_engine import FakeEngine
from tests.app.media_host import drip, loopback_network, media_host, reply
from tests.app.routes.test_ask import FORM, part
from tests.app.test_hangup import chat_request, post

CHAT = "/v1/chat/completions"
ASK = "/v1/videos/ask"
CLIP = bytes(range(256)) * 40 + b"\xfb\xff"
B64 = base64.b64encode(CLIP).decode()


def clip_at(url: str) -> dict[str, Any]:
    return {"messages": user([{"type": "video_url", "video_url": {"url": url}}])}


def check_refusal(response: Any, *statuses: int) -> str:
    """The message; short, and without addresses, paths or objects."""
    assert response.status_code in statuses, response.text[:300]
    assert len(response.content) < 2048
    error = response.json()["error"]
    assert not any(word in error["message"] for word in ("0x", "/tmp", "passwd", "127.", "Traceback"))
    return str(error["message"])


# ------------------------------------------------------------------------------------------------------------- forms


@pytest.mark.parametrize("filename", [None, "x"])
def test_ten_thousand_parts(make_client: MakeClient, tmp_path: Path, filename: str | None) -> None:
    """Fields or files: refused after a few, without a descriptor each."""
    client = make_client()
    before = len(os.listdir("/proc/self/fd"))
    body = "".join(part(f"f{n}" if filename is None else "file", "x", filename) for n in range(10_000)) + "--b--\r\n"
    check_refusal(client.post(ASK, content=body.encode(), headers=FORM), 400, 413)
    assert len(os.listdir("/proc/self/fd")) <= before + 5
    assert list_uploads(tmp_path) == []


@pytest.mark.parametrize(
    ("path", "kind", "head"),
    [
        (ASK, "multipart/form-data; boundary=b", part("prompt", "").removesuffix("\r\n")),
        ("/v1/files", "multipart/form-data; boundary=b", part("purpose", "").removesuffix("\r\n")),
        (ASK, "multipart/form-data; boundary=b", "--b\r\nX: "),
        (ASK, "application/x-www-form-urlencoded", "prompt="),
        (CHAT, "application/x-www-form-urlencoded", "messages="),
    ],
)
def test_a_field_of_200_mb(start_server: StartServer, path: str, kind: str, head: str) -> None:
    """Answered after a megabyte or so of it, whatever the claimed length."""
    server = start_server()
    piece = b"a" * 65536
    total = 200 << 20
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: {total}\r\n\r\n{head}".encode()
        )
        sent = 0
        client.settimeout(0.002)
        answer = b""
        while not answer and sent < total:
            try:
                answer = client.recv(4096)
            except TimeoutError:
                client.settimeout(60)
                client.sendall(piece)
                client.settimeout(0.002)
                sent += len(piece)
    assert answer.split(b" ")[1] in (b"400", b"413", b"415")
    assert sent < 16 << 20  # the limit, and what sockets and servers hold on their way
    assert wait_until(server.is_clean)


@pytest.mark.parametrize(
    "header",
    ['filename="a\0b.mp4"', 'filename="../../x"', 'filename="/etc/passwd"', "filename*=UTF-8''..%2f..%2fx",
     'filename="a"; filename="b"', 'filename="a\\"; name=\\"prompt"', "filename=" + "x" * 3000],
)  # fmt: skip
def test_file_names_end_nowhere(make_client: MakeClient, tmp_path: Path, header: str) -> None:
    """A name is odd, not wrong: the bytes arrive, in a file of ours."""
    engine = FakeEngine()
    body = f'--b\r\nContent-Disposition: form-data; name="file"; {header}\r\n\r\nclip\r\n' + part("prompt", "a")
    response = make_client(engine).post(ASK, content=(body + "--b--\r\n").encode("latin-1"), headers=FORM)
    assert response.status_code == 200
    assert engine.files == [b"clip"]
    (path,) = (Path(request.chat[0].parts[0].source.path) for request in engine.requests)
    assert path.name == "media" and path.is_relative_to(tmp_path) and len(path.parent.name) == 32
    assert list_uploads(tmp_path) == []


# ----------------------------------------------------------------------------------------------------- data: URLs


@pytest.mark.parametrize(
    ("url", "status"),
    [
        (f"data:video/mp4;base64,{B64}", 200),
        (f"DATA:video/mp4;base64,{B64}", 200),
        (f"data:video/mp4;codecs=avc1;base64,{B64}", 200),
        (f"data:;base64,{B64}", 200),
        (f"data:image/png;base64,{B64}", 200),
        ("data:video/mp4;base64," + base64.urlsafe_b64encode(CLIP).decode(), 200),
        ("data:video/mp4;base64," + base64.encodebytes(CLIP).decode(), 200),
        ("data:video/mp4;base64," + B64.rstrip("="), 200),
        (f"data:video/mp4,{B64}", 400),
        (f"data:video/mp4;base64{B64}", 400),
        ("data:video/mp4;base64,", 400),
        (f"data:video/mp4;base64,!!!!{B64}", 400),
        (f"data:video/mp4;base64,{B64[:99]}!{B64[99:]}", 400),
        (f"data:video/mp4;base64,{B64}\u0410", 400),
    ],
)
def test_data_urls(make_client: MakeClient, url: str, status: int) -> None:
    engine = FakeEngine()
    response = make_client(engine).post(CHAT, json=clip_at(url))
    assert response.status_code == status
    if status == 200:
        assert engine.requests[0].chat[0].parts[0].source == InlineBytes(data=CLIP)
    else:
        check_refusal(response, 400)


def test_a_bad_megabyte_is_not_repeated(make_client: MakeClient, caplog: pytest.LogCaptureFixture) -> None:
    """Not in the answer, not in the log."""
    with caplog.at_level(logging.DEBUG):
        for url in ("data:video/mp4;base64,!" + "A" * (1 << 20), "x" * (1 << 20), "data:" + "A" * (1 << 20)):
            check_refusal(make_client().post(CHAT, json=clip_at(url)), 400)
    assert all(len(record.getMessage()) < 1000 for record in caplog.records)


# ------------------------------------------------------------------------------------------------- turned inward

INWARD = [
    "http://127.0.0.1:{port}/v.mp4", "http://localhost:{port}/v.mp4", "http://[::1]:{port}/v.mp4", "http://0.0.0.0:{port}/",
    "http://2130706433:{port}/", "http://0x7f.1:{port}/", "http://0x7f000001:{port}/", "http://0177.0.0.1:{port}/",
    "http://127.1:{port}/", "http://127.0.0.1.:{port}/", "http://localhost.:{port}/", "http://[::ffff:127.0.0.1]:{port}/",
    "http://[::ffff:7f00:1]:{port}/", "http://[0:0:0:0:0:ffff:127.0.0.1]:{port}/", "http://[64:ff9b::7f00:1]:{port}/",
    "http://[2002:7f00:1::]:{port}/", "http://[::127.0.0.1]:{port}/", "http://example.com\\@127.0.0.1:{port}/",
    "http://example.com@127.0.0.1:{port}/", "http://127.0.0.1:{port}#@example.com/", "http://127.0.0.1:{port}\\@example.com/",
    "http://example.com:80@127.0.0.1:{port}/", "http://127.0.0.1%2f:{port}/", "http://127.0.0.1:{port}%20/",
    "http://127。0。0。1:{port}/", "http://ⓛocalhost:{port}/", "http:127.0.0.1:{port}/", "http:///127.0.0.1:{port}/",
    "//127.0.0.1:{port}/", "http://127.0.0.1:{port}\r\nHost: example.com/", " http://127.0.0.1:{port}/", "hTTp://127.0.0.1:{port}/",
    "http://[::1%25lo]:{port}/", "https://127.0.0.1:{port}/", "http://169.254.169.254/latest/meta-data/",
    "http://[fd00:ec2::254]/latest/meta-data/", "ftp://127.0.0.1:{port}/x", "gopher://127.0.0.1:{port}/x", "rtsp://127.0.0.1:{port}/x",
    "tcp://127.0.0.1:{port}", "hls+http://127.0.0.1:{port}/x", "concat:http://127.0.0.1:{port}/|x", "crypto:http://127.0.0.1:{port}/",
    "subfile,,start,0,end,9,,:http://127.0.0.1:{port}/", "async:http://127.0.0.1:{port}/", "cache:http://127.0.0.1:{port}/",
    "/etc/passwd", "pipe:0", "fd:0", "unix:/tmp/x",
]  # fmt: skip
HOSTS = [
    "127.0.0.1",
    "localhost",
    "[::1]",
    "0.0.0.0",
    "[::ffff:7f00:1]",
    "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]",
    "example.com",
]


def test_nothing_inside_is_dialled(make_client: MakeClient) -> None:
    """With fetching off, and with it on for those very hosts, by the rules of production: not one connection."""
    with media_host(reply(CLIP)) as host:
        listed = [f"{name}:{host.port}" for name in HOSTS] + ["169.254.169.254", "[fd00:ec2::254]"]
        engine = FakeEngine()
        for settings in ({}, {"allowed_media_domains": listed, "media_redirects": 3}):
            client = make_client(engine, Network(resolve=_no_names), **settings)
            for url in (url.format(port=host.port) for url in INWARD):
                for kind in ("video_url", "image_url"):
                    body = {"messages": user([{"type": kind, kind: {"url": url}}])}
                    check_refusal(client.post(CHAT, json=body), 400)
                check_refusal(client.post(f"{CHAT}/render", json=clip_at(url)), 400)
    assert (host.connections, engine.requests) == (0, [])


async def _no_names(host: str, port: int) -> tuple[Any, ...]:
    raise OSError("names are not looked up in this test")


def test_fetched_over_http(make_client: MakeClient, tmp_path: Path) -> None:
    """From an allowed host to the engine and away again."""
    engine = FakeEngine()
    with media_host(reply(CLIP)) as host:
        client = make_client(engine, loopback_network(), allowed_media_domains=[f"media.test:{host.port}"])
        url = f"http://media.test:{host.port}/v.mp4"
        for body in (clip_at(url), clip_at(url) | {"stream": True}):
            assert client.post(CHAT, json=body).status_code == 200
        assert client.post(f"{CHAT}/render", json=clip_at(url)).status_code == 200
        assert (
            client.post(CHAT, json=clip_at(url) | {"temperature": 9}).status_code == 400
        )  # before anything is fetched
        many = {"messages": user([{"type": "video_url", "video_url": {"url": f"{url}?{n}"}} for n in range(17)])}
        assert client.post(CHAT, json=many).status_code == 400
    assert engine.files == [CLIP, CLIP]
    assert host.connections == 3
    assert list_uploads(tmp_path) == []


def test_a_client_that_leaves_ends_the_fetch(start_server: StartServer) -> None:
    """Nothing of it stays: no connection, no file, no request."""
    with media_host(drip(b"HTTP/1.1 200 OK\r\n\r\n", b"x", 0.05)) as host:
        server = start_server(network=loopback_network(), allowed_media_domains=[f"media.test:{host.port}"])
        body = json.dumps(clip_at(f"http://media.test:{host.port}/"))
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
            client.sendall(post(CHAT, "application/json", body.encode()))
            assert wait_until(lambda: host.requests != [] and list_uploads(server.media_dir) != [])
        assert wait_until(server.is_clean)
        assert not server.engine.requests


# ----------------------------------------------------------------------------------------------------- file: URLs


def test_file_urls_stay_inside(make_client: MakeClient, tmp_path: Path) -> None:
    folder = tmp_path / "allowed"
    (folder / "sub").mkdir(parents=True)
    (folder / "clip.mp4").write_bytes(CLIP)
    (tmp_path / "secret").write_bytes(b"secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "up").symlink_to(tmp_path)
    escapes = [
        f"file://{folder}/../secret", f"file://{folder}/%2e%2e/secret", f"file://{folder}/%2E%2E%2Fsecret",
        f"file://{folder}/link", f"file://{folder}/up/secret", f"file://{folder}/sub/../../secret", f"file://evil.host{folder}/clip.mp4",
        "file:///etc/passwd", "file://localhost/etc/passwd", "file:///proc/self/environ", "file:///dev/zero", f"file://{folder}",
        f"file://{folder}/clip.mp4%00.png", f"file://{folder}\\..\\secret", f"file://user@localhost{folder}/clip.mp4",
        "file:clip.mp4", f"file://localhost:80{folder}/clip.mp4", f"{folder}/clip.mp4", f"file://{folder}/clip.mp4#x",
    ]  # fmt: skip
    engine = FakeEngine()
    client = make_client(engine, allowed_local_media_path=folder)
    for url in escapes:
        assert client.post(CHAT, json=clip_at(url)).status_code == 400, url
    assert engine.requests == []
    assert client.post(CHAT, json=clip_at(f"file://{folder}/clip.mp4")).status_code == 200
    assert engine.files == [CLIP]
    assert make_client().post(CHAT, json=clip_at(f"file://{folder}/clip.mp4")).status_code == 400


# ------------------------------------------------------------------------------------------------------- full disks


def send_everywhere(client: Any, clip: bytes) -> Iterator[Any]:
    yield client.post(ASK, files={"file": ("c", clip)}, data={"prompt": "?"})
    yield client.post("/v1/files", files={"file": ("c", clip)}, data={"purpose": "vision"})


def test_the_quota(make_client: MakeClient, tmp_path: Path) -> None:
    """507 with the true cause, nothing left, and room again as soon as a file is deleted."""
    client = make_client(media_quota=10_000)
    kept = client.post("/v1/files", files={"file": ("c", b"x" * 9000)}, data={"purpose": "vision"}).json()["id"]
    for response in send_everywhere(client, b"x" * 2000):
        assert "quota is 10000 bytes" in check_refusal(response, 507)
        assert response.json()["error"]["type"] == "server_error"
    assert len(list_uploads(tmp_path)) == 1
    assert client.delete(f"/v1/files/{kept}").status_code == 200
    assert [response.status_code for response in send_everywhere(client, b"x" * 2000)] == [200, 200]


def test_a_disk_that_is_full(make_client: MakeClient, tmp_path: Path) -> None:
    """A real small file system, where one may be mounted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("needs the right to mount a file system")
    try:
        client = make_client(media_dir=disk)
        for response in send_everywhere(client, b"x" * (4 << 20)):
            assert check_refusal(response, 507) == "the server's disk is full"
        assert list_uploads(tmp_path) == []
        assert next(send_everywhere(client, b"x" * 1000)).status_code == 200
        client.__exit__()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


# --------------------------------------------------------------------------------------------- what refusals carry


@pytest.mark.parametrize(
    ("error", "status", "param"),
    [
        (RequestError("undecodable", "no", param="messages"), 422, "file"),
        (RequestError("unsupported_media", "no", param="messages"), 415, "file"),
        (RequestError("too_large", "no", param="messages"), 413, "file"),
        (RequestError("deadline", "no", param="messages"), 504, "file"),
        (RequestError("invalid", "too long", param="messages", code="context_length_exceeded"), 400, None),
        (RequestError("invalid", "no", param="video.end_s"), 400, "video.end_s"),
        (RequestError("queue_full", "busy"), 429, None),
    ],
)
def test_the_engines_refusals_name_the_forms_fields(
    make_client: MakeClient, error: RequestError, status: int, param: str | None
) -> None:
    client = make_client(FakeEngine(refuses=error))
    form = {"prompt": "?"}
    uploaded = client.post(ASK, files={"file": ("c", b"x")}, data=form)
    assert (uploaded.status_code, uploaded.json()["error"]["param"]) == (status, param)
    assert ("retry-after" in uploaded.headers) == (status == 429)
    stored = client.post("/v1/files", files={"file": ("c", b"x")}, data={"purpose": "vision"}).json()["id"]
    named = client.post(ASK, files={"prompt": (None, "?"), "file_id": (None, stored)})
    assert named.json()["error"]["param"] == ("file_id" if param == "file" else param)


def test_a_server_that_stops_takes_no_more_work(start_server: StartServer) -> None:
    """A request that is still arriving at the signal gets a 503; one that was accepted before is answered."""
    engine = FakeEngine("abc")
    gate = {"open": False}
    engine.step_gate = lambda _: gate["open"]
    server = start_server(engine, shutdown_grace_s=8.0)
    early, late = (socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(2))
    with early, late:
        early.sendall(chat_request(stream=False))
        late.sendall(chat_request(stream=False)[:-5])
        assert wait_until(lambda: len(engine.live) == 1)
        server.stop()
        assert wait_until(lambda: server.app.state.server.phase == "draining")
        late.sendall(chat_request(stream=False)[-5:])
        answer = late.recv(65536)
        assert answer.startswith(b"HTTP/1.1 503 ")
        gate["open"] = True
        assert early.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_routes_that_turn_away_while_stopping(make_client: MakeClient) -> None:
    client = make_client()
    client.app.state.server.phase = "draining"  # type: ignore[attr-defined]
    for response in (
        client.post(CHAT, json={"messages": user()}),
        client.post(f"{CHAT}/render", json={"messages": user()}),
        client.post(ASK, files={"file": ("c", b"x")}, data={"prompt": "?"}),
        client.get("/ready"),
    ):
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert "shutting down" in response.json()["error"]["message"]
    assert client.get("/health").status_code == 200
