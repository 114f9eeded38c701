"""A client that hangs up, in any phase, frees everything: the engine's request, the upload, the open socket."""

from __future__ import annotations

import json
import socket
import time

import pytest

from tests.app.conftest import RunningServer, StartServer, list_uploads, user, wait_until
from tests.app.fake_engine import FakeEngine

CLIP = b"x" * 200_000


def connect(server: RunningServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def post(path: str, kind: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def chat_request(*, stream: bool) -> bytes:
    body = json.dumps({"messages": user(), "stream": stream}).encode()
    return post("/v1/chat/completions", "application/json", body)


def ask_request(*, stream: bool) -> bytes:
    part = '--b\r\nContent-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
    body = part.format("prompt", "what?") + part.format("stream", "true" if stream else "false")
    body += '--b\r\nContent-Disposition: form-data; name="file"; filename="c"\r\n\r\n'
    return post("/v1/videos/ask", "multipart/form-data; boundary=b", body.encode() + CLIP + b"\r\n--b--\r\n")


def is_idle(server: RunningServer) -> bool:
    """Nothing in the engine, nothing on disk, and the server knows it."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as probe:
        probe.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        text = b""
        while data := probe.recv(65536):
            text += data
    return server.is_clean() and b"evs:http_requests_in_flight 1.0" in text and b"evs:uploads_on_disk 0.0" in text


@pytest.mark.parametrize("part", [50, 1000, 100_000])
def test_during_the_upload(start_server: StartServer, part: int) -> None:
    server = start_server()
    with connect(server) as client:
        client.sendall(ask_request(stream=False)[:part])
        if part > 500:
            assert wait_until(lambda: bool(list_uploads(server.media_dir)))
    assert wait_until(lambda: is_idle(server))
    assert not server.engine.requests


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("make_request", [chat_request, ask_request])
def test_while_it_waits_to_be_accepted(start_server: StartServer, make_request, stream: bool) -> None:
    """Decode and queue: nothing has been answered yet, so only watching the socket can tell."""
    engine = FakeEngine()
    engine.submit_gate.clear()
    server = start_server(engine)
    with connect(server) as client:
        client.sendall(make_request(stream=stream))
        assert wait_until(lambda: len(engine.live) == 1)
    assert wait_until(lambda: is_idle(server))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("make_request", [chat_request, ask_request])
@pytest.mark.parametrize("step", [0, 3])
def test_during_the_answer(start_server: StartServer, make_request, stream: bool, step: int) -> None:
    """Before the first token and after some; streamed, and while a whole answer is being collected."""
    engine = FakeEngine("abcdef")
    reached = []
    engine.step_gate = lambda place: place < step or (reached.append(place), False)[1]
    server = start_server(engine)
    with connect(server) as client:
        client.sendall(make_request(stream=stream))
        assert wait_until(lambda: bool(reached))
        assert engine.live
    assert wait_until(lambda: is_idle(server))


def test_slow_body_is_given_up_on(start_server: StartServer) -> None:
    """A body that stops does not hold a place for ever."""
    server = start_server(body_idle_s=0.2)
    with connect(server) as client:
        client.sendall(ask_request(stream=False)[:1000])
        assert client.recv(65536).startswith(b"HTTP/1.1 408 ")
        assert wait_until(lambda: is_idle(server))


def test_length_that_lies(start_server: StartServer) -> None:
    """Fewer bytes than claimed is a hang-up; the server goes on."""
    server = start_server()
    with connect(server) as client:
        client.sendall(chat_request(stream=False)[:-5])
        client.shutdown(socket.SHUT_WR)
        client.recv(65536)
    assert wait_until(lambda: is_idle(server))


@pytest.mark.parametrize("claimed", [True, False])
def test_too_large_a_body_is_answered_while_it_is_sent(start_server: StartServer, claimed: bool) -> None:
    """The client gets its 413, whether it claimed the length or not, and the file is gone."""
    server = start_server(max_upload=100_000)
    request = ask_request(stream=False)
    if not claimed:
        head, _, body = request.partition(b"\r\n\r\n")
        head = b"\r\n".join(line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length"))
        chunks = [body[at : at + 5000] for at in range(0, len(body), 5000)]
        framed = b"".join(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n" for chunk in chunks)
        request = head + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"
    with connect(server) as client:
        client.sendall(request)
        assert client.recv(65536).startswith(b"HTTP/1.1 413 ")
    assert wait_until(lambda: is_idle(server))


def test_many_hangups_at_random_times(start_server: StartServer) -> None:
    """After a hundred of them the server is as it was."""
    engine = FakeEngine("abcdefgh" * 20)
    server = start_server(engine)
    for turn in range(100):
        with connect(server) as client:
            client.sendall((ask_request if turn % 2 else chat_request)(stream=turn % 4 < 2))
            time.sleep(turn % 10 / 1000)
    assert wait_until(lambda: is_idle(server))
