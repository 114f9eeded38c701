"""Vectors from the outside: the official client over HTTP and the socket, one clip by three ways, and clients that
misbehave. A real server with the demo model; nothing is replaced."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import openai
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.clips import make_clip, make_image
from tests.oracle import noise_clip
from tests.processes import children_of, descriptors_of, wait_until
from tests.server import Server, running_server

SAMPLES = Path(__file__).parents[2] / "sample_videos"
IDLE_S = 8.0
WINDOW = {"duration_s": 2.0, "stride_s": 1.0, "fps": 2.0}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = ("--dtype", "float32", "--realtime-idle-s", str(IDLE_S), "--realtime-max-sessions", "3")
    with running_server("demo", *flags, media_dir=tmp_path_factory.mktemp("media")) as server:
        yield server


def official(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def dial(server: Server, **options: Any) -> ClientConnection:
    return connect(server.url.replace("http", "ws") + "/v1/realtime?model=demo", max_size=None, **options)


def say(socket: ClientConnection, kind: str, **fields: Any) -> None:
    socket.send(json.dumps({"type": kind, **fields}))


def hear(socket: ClientConnection, until: str, timeout_s: float = 60.0) -> list[dict[str, Any]]:
    """Events up to the first of this kind."""
    events: list[dict[str, Any]] = []
    deadline = time.monotonic() + timeout_s
    while not events or events[-1]["type"] != until:
        events.append(json.loads(socket.recv(timeout=max(0.1, deadline - time.monotonic()))))
    return events


def update(socket: ClientConnection, **session: Any) -> dict[str, Any]:
    say(socket, "session.update", session={"type": "embedding", "window": WINDOW, **session})
    found: dict[str, Any] = hear(socket, "session.updated")[-1]["session"]
    return found


def windows_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["type"] == "embedding.done" and event.get("index") is not None]


def fragmented() -> bytes:
    """12 s at 8 a second: a noise ground that changes at 4 s."""
    first, second = (
        noise_clip(1, num_frames=1, size=(96, 128)).frames,
        noise_clip(2, num_frames=1, size=(96, 128)).frames,
    )
    frames = [*[first[0]] * 32, *[second[0]] * 64]
    return make_clip(frames=frames, fps=8, options={"g": "8", "bf": "2"},
                     container_options={"movflags": "frag_keyframe+empty_moov"})  # fmt: skip


def test_the_official_client_embeds(server: Server) -> None:
    """Base64, its default, and floats are the same numbers; several inputs keep their order; shorter ones are cut."""
    client = official(server)
    made = client.embeddings.create(model="demo", input=["a red circle", "nothing moves"])
    assert [entry.index for entry in made.data] == [0, 1] and made.usage.prompt_tokens > 0
    floats = client.embeddings.create(model="demo", input="nothing moves", encoding_format="float", dimensions=64)
    whole, short = np.array(made.data[1].embedding), np.array(floats.data[0].embedding)
    assert len(whole) == 256 and abs(np.linalg.norm(whole) - 1) < 1e-5
    assert np.abs(short - whole[:64] / np.linalg.norm(whole[:64])).max() < 1e-5


def test_chats_are_embedded(server: Server) -> None:
    """An image or a clip, with and without an instruction; usage says what was looked at."""
    url = "data:video/mp4;base64," + base64.b64encode((SAMPLES / "mover.mp4").read_bytes()).decode()
    body = {"messages": [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": url}}]}]}
    plain = httpx2.post(server.url + "/v1/embeddings", json=body, timeout=60).json()
    told = httpx2.post(server.url + "/v1/embeddings", json={**body, "instruction": "Find it."}, timeout=60).json()
    assert plain["usage"]["evs"]["frames"] == 16 and plain["usage"]["evs"]["kept"] < plain["usage"]["evs"]["cells"]
    assert plain["data"][0]["embedding"] != told["data"][0]["embedding"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, None),
        ({"input": ""}, "input"),
        ({"input": "a", "messages": []}, "messages"),
        ({"input": "a", "window": {}}, None),
        ({"input": "a", "dimensions": 257}, "dimensions"),
        ({"input": [[100000]]}, "input"),
        ({"input": "a", "nonsense": 1}, "nonsense"),
        ({"video": "data:video/mp4;base64,AAAA"}, "video.url"),
        ({"video": "data:video/mp4;base64,AAAA", "stream": True}, "video.url"),
        ({"video": "data:,", "window": {"duration_s": 0}}, "window.duration_s"),
        ({"input": "a" * 100_000}, "input"),
    ],
)
def test_wrong_requests_are_refused(server: Server, body: dict[str, Any], param: str | None) -> None:
    """By name, and before the first byte of a stream."""
    answer = httpx2.post(server.url + "/v1/embeddings", json=body, timeout=60)
    error = answer.json()["error"]
    assert 400 <= answer.status_code < 500, answer.text
    assert (error["param"] or "").startswith(param or "")


def test_three_ways_to_the_same_vectors(server: Server) -> None:
    """A clip's windows over HTTP, as events and over the socket, in binary and in base64, at once and paced."""
    data = fragmented()
    body = {"video": {"url": "data:video/mp4;base64," + base64.b64encode(data).decode()}, "window": WINDOW}
    plain = httpx2.post(server.url + "/v1/embeddings", json=body, timeout=60).json()
    text = httpx2.post(server.url + "/v1/embeddings", json={**body, "stream": True}, timeout=60).text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert text.rstrip().endswith("data: [DONE]") and events[-1]["type"] == "session.stats"
    found = {"plain": plain["data"], "events": windows_of(events)}
    with dial(server) as socket:
        session = update(socket, input={"format": "mp4"})
        for name, pause_s in (("at once", 0.0), ("paced", 0.01)):
            for at in range(0, len(data), 4096):
                piece = data[at : at + 4096]
                if pause_s:
                    say(socket, "input_video_buffer.append", video=base64.b64encode(piece).decode())
                else:
                    socket.send(piece)
                time.sleep(pause_s)
            say(socket, "input_video_buffer.commit")
            found[name] = windows_of(hear(socket, "input_video_buffer.committed"))
    vectors = {name: np.array([window["embedding"] for window in windows]) for name, windows in found.items()}
    spans = {
        name: [(w["start_sec"], w["end_sec"], w["frame_seqs"]) for w in windows] for name, windows in found.items()
    }
    assert len(spans["plain"]) == 11 and plain["window"]["duration_s"] == 2.0
    assert plain["evs"]["encoder"] == session["evs"]["encoder"] == "reuse"
    for name in found:
        assert spans[name] == spans["plain"]
        assert np.abs(vectors[name] - vectors["plain"]).max() < 1e-5, name


@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager")  # how openai 3 calls websockets 17
def test_the_official_client_speaks_realtime(server: Server) -> None:
    """`realtime.connect`, unmodified: pictures with times in, windows out, a text beside them."""
    picture = base64.b64encode(make_image(image_format="JPEG")).decode()
    with official(server).realtime.connect(model="demo") as connection:
        assert connection.recv().type == "session.created"
        session: Any = {"type": "embedding", "window": WINDOW, "output": {"encoding_format": "base64"}}
        connection.session.update(session=session)
        assert connection.recv().type == "session.updated"
        for number in range(8):
            event: Any = {"type": "input_video_buffer.append", "image": picture, "timestamp_s": 100 + number / 2}
            connection.send(event)
        text: Any = {"type": "input_text.embed", "text": "a picture", "event_id": "mine"}
        connection.send(text)
        commit: Any = {"type": "input_video_buffer.commit"}
        connection.send(commit)
        events: list[dict[str, Any]] = []
        while not events or events[-1]["type"] != "input_video_buffer.committed" or len(events) < 5:
            events.append(json.loads(connection.recv_bytes()))
    windows = windows_of(events)
    assert [(window["start_sec"], window["end_sec"]) for window in windows] == [(100, 102), (101, 103), (102, 104)]
    assert windows[0]["frame_seqs"] == [0, 1, 2, 3] and windows[0]["evs"]["kept"] < windows[0]["evs"]["cells"]
    assert len(np.frombuffer(base64.b64decode(windows[0]["embedding"]), "<f4")) == 256
    assert [event["item_id"] for event in events if event["type"] == "embedding.done"].count("mine") == 1


def test_chats_beside_sessions_say_the_same(server: Server) -> None:
    """Law 4 with vectors among answers."""
    question: Any = [{"role": "user", "content": "Describe the video."}]
    alone = official(server).chat.completions.create(model="demo", messages=question, max_tokens=24)
    stop, streaming = threading.Event(), threading.Event()
    picture = base64.b64encode(make_image(image_format="JPEG")).decode()

    def stream() -> None:
        """Pictures as fast as there are windows of them."""
        with dial(server) as socket:
            update(socket)
            for number in itertools.count():
                say(socket, "input_video_buffer.append", timestamp_s=number / 2, image=picture)
                if number >= 5 and number % 2:
                    hear(socket, "embedding.done")
                    streaming.set()
                    if stop.is_set():
                        break
            say(socket, "input_video_buffer.commit")
            hear(socket, "input_video_buffer.committed")

    thread = threading.Thread(target=stream)
    thread.start()
    try:
        assert streaming.wait(60)
        beside = [
            official(server).chat.completions.create(model="demo", messages=question, max_tokens=24) for _ in range(3)
        ]
    finally:
        stop.set()
        thread.join()
    assert {answer.choices[0].message.content for answer in beside} == {alone.choices[0].message.content}


ABUSES: dict[str, tuple[list[str | bytes], str]] = {
    "garbage": ([b"\x07garbage" * 400], "unsupported_media"),
    "tiny_binary": ([b"\x07"] * 10_000, "unsupported_media"),
    "no_bytes": ([b""] * 10_000, "too_many_errors"),
    "tiny_text": (["{}"] * 10_000, "too_many_errors"),
    "half_pictures": ([make_image(image_format="JPEG")[:300]] * 20, "undecodable"),
    "half_stream": ([fragmented()[:5000], b"\0" * 50_000, b"\xff" * 50_000], "undecodable"),
    "wrong_format": ([make_image(image_format="PNG")] * 3, "unsupported_media"),
    "silence": ([], "session_idle"),
}


@pytest.mark.parametrize("name", ABUSES)
def test_abuse_ends_the_session_and_nothing_else(server: Server, name: str) -> None:
    """A clear error, then statistics, then the close; children and descriptors are as before."""
    before = children_of(server.engine_pid), len(descriptors_of(server.engine_pid))
    messages, code = ABUSES[name]
    heard: list[dict[str, Any]] = []
    with dial(server) as socket:
        update(socket, input={"format": "jpeg" if name == "wrong_format" else "auto"})
        try:
            for message in messages:
                socket.send(message)
            if name == "half_stream":
                say(socket, "input_video_buffer.commit")
            while True:
                heard.append(json.loads(socket.recv(timeout=30)))
        except ConnectionClosed:
            pass
        try:
            while True:
                heard.append(json.loads(socket.recv(timeout=30)))
        except (ConnectionClosed, TimeoutError):
            pass
    errors = [event["error"] for event in heard if event["type"] == "error"]
    assert errors and errors[-1]["code"] == code, heard[-3:]
    check_left_nothing(server, before)


@pytest.mark.parametrize("paced", [True, False])
def test_a_killed_client_leaves_nothing(server: Server, paced: bool) -> None:
    before = children_of(server.engine_pid), len(descriptors_of(server.engine_pid))
    picture = base64.b64encode(make_image(image_format="JPEG")).decode()
    with dial(server, close_timeout=1) as client:
        update(client)
        for number in range(5 if paced else 200):
            say(client, "input_video_buffer.append", timestamp_s=number / 2, image=picture)
            time.sleep(0.05 if paced else 0)
        client.socket.shutdown(socket.SHUT_RDWR)
    check_left_nothing(server, before)


def check_left_nothing(server: Server, before: tuple[set[int], int]) -> None:
    def is_clean() -> bool:
        text = httpx2.get(server.url + "/metrics", timeout=10).text
        gone = "evs:realtime_sessions 0.0" in text and "vllm:num_requests_running 0.0" in text
        return gone and (children_of(server.engine_pid), len(descriptors_of(server.engine_pid))) == before

    wait_until(is_clean, what="everything freed")
    assert httpx2.get(server.url + "/health").status_code == 200
    made = official(server).embeddings.create(model="demo", input="still here", encoding_format="float")
    assert len(made.data[0].embedding) == 256


def test_too_many_sessions_are_told_so(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            hear(stack.enter_context(dial(server)), "session.created")
        another = stack.enter_context(dial(server))
        assert hear(another, "error")[-1]["error"]["code"] == "too_many_sessions"
        with pytest.raises(ConnectionClosed) as closed:
            another.recv(timeout=30)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1013


def test_a_full_house_may_change_its_mind(server: Server) -> None:
    """An update takes the place of the stream that it ends, also where no place is free."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(dial(server)) for _ in range(3)]
        for socket in sockets:
            update(socket)
        for encoder in ("full", "skip", "reuse") * 5:
            assert update(sockets[0], evs={"encoder": encoder})["evs"]["encoder"] == encoder


def test_wrong_events_change_nothing(server: Server) -> None:
    """Each is refused by name with the id it came with, and the session goes on."""
    wrong: list[tuple[dict[str, Any], str | None]] = [
        ({"type": "nonsense"}, None),
        ({"type": "session.update", "session": {"type": "embedding", "nonsense": 1}}, "nonsense"),
        ({"type": "session.update", "session": {"type": "embedding", "evs": {"method": "evs", "rate": 0.5}}}, "evs"),
        ({"type": "input_video_buffer.append", "image": "@@"}, "image"),
        ({"type": "input_video_buffer.append"}, None),
        ({"type": "input_video_buffer.commit"}, None),
        ({"type": "input_text.embed", "text": "a" * 100_000}, None),
    ]
    with dial(server) as socket:
        assert socket.protocol.extensions == []  # nothing sent can grow on its way in
        hear(socket, "session.created")
        for number, (event, param) in enumerate(wrong):
            socket.send(json.dumps({**event, "event_id": f"e{number}"}))
            error = hear(socket, "error")[-1]["error"]
            assert error["event_id"] == f"e{number}" and (param or "") in (error["param"] or "")
        say(socket, "input_text.embed", text="fine")
        assert hear(socket, "embedding.done")


async def test_windows_come_while_the_clip_is_decoded(server: Server) -> None:
    """The first event of a long clip is there long before the last. A busy machine may hand us both at once; then we
    ask again, about another clip."""
    for frames in (240, 256, 272, 288):
        data = make_clip(frames=frames, fps=8, size=(96, 128))
        body = {"video": "data:video/mp4;base64," + base64.b64encode(data).decode(), "window": WINDOW, "stream": True}
        async with (
            httpx2.AsyncClient(timeout=60) as client,
            client.stream("POST", server.url + "/v1/embeddings", json=body) as answer,
        ):
            now = asyncio.get_running_loop().time
            began = now()
            times = [now() - began async for line in answer.aiter_lines() if '"embedding.done"' in line]
        assert len(times) == frames // 8 - 1
        if times[0] < times[-1] / 3:
            return
    raise AssertionError(f"the first of {len(times)} windows came after {times[0]:.2f} of {times[-1]:.2f} s")
