"""A session's own rules, over a scripted engine: clocks, numbers, limits of time, how it ends, whose page asks."""

from __future__ import annotations

import base64
import json
import threading
from typing import Any

import pytest
from starlette.testclient import WebSocketTestSession
from starlette.websockets import WebSocketDisconnect
from websockets.sync.client import connect

from app.realtime.count import SessionCount
from app.realtime.events import InputKnobs, parse_event
from app.realtime.media import MediaClock
from runner.errors import RequestError
from runner.stream_messages import FramesDropped, WindowLaid
from tests.app.conftest import MakeClient, StartServer, wait_until
from tests.app.fake_stream import StreamingEngine

JPEG = b"\xff\xd8\xff" + bytes(20)
PATH = "/v1/realtime?model=fake"


def say(socket: WebSocketTestSession, kind: str, **fields: Any) -> None:
    socket.send_text(json.dumps({"type": kind, **fields}))


def hear(socket: WebSocketTestSession, until: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] != until:
        events.append(socket.receive_json())
    return events


def append(**fields: Any) -> Any:
    return parse_event(json.dumps({"type": "input_video_buffer.append", **fields}))


def encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_the_first_picture_decides_whose_clock_it_is() -> None:
    """A picture with a time makes it the client's, one without the server's; then none may do otherwise."""
    theirs, ours = MediaClock(None), MediaClock(None)
    assert theirs.read(append(image=encode(JPEG), timestamp_s=7.5), 100).time_s == 7.5
    assert ours.read(append(image=encode(JPEG)), 100).time_s == 0.0
    for clock, event in ((theirs, append(image=encode(JPEG))), (ours, append(image=encode(JPEG), timestamp_s=1.0))):
        with pytest.raises(RequestError, match="clock"):
            clock.read(event, 100)
    with pytest.raises(RequestError, match="timestamp_s"):
        MediaClock(InputKnobs(timestamps="client")).take(JPEG)
    assert MediaClock(InputKnobs(timestamps="client")).take(b"\x1aE\xdf\xa3").time_s == 0.0  # a container has its own


def test_numbers_rise() -> None:
    clock = MediaClock(None)
    seqs = [clock.read(append(image=encode(JPEG), timestamp_s=1.0, **more), 100).seq for more in ({}, {"seq": 9}, {})]
    assert seqs == [0, 9, 10]
    with pytest.raises(RequestError) as refusal:
        clock.read(append(image=encode(JPEG), timestamp_s=1.0, seq=10), 100)
    assert refusal.value.code == "duplicate_seq"
    with pytest.raises(RequestError, match="commit it first"):
        clock.read(append(video=encode(b"xx")), 100)


def test_the_count_adds_up() -> None:
    """A frame of two windows is used once."""
    common = {"request_id": "r", "start_s": 0.0, "end_s": 1.0, "origin_s": 0.0, "times_s": (), "size": (1, 1),
              "prompt_tokens": 2, "slots": 1, "cells": 4, "kept": 3, "changed": 1, "encoder_cells": 2,
              "decoded_s": 0.0}  # fmt: skip
    count = SessionCount()
    for index, seqs in enumerate([(0, 1, 2), (1, 2, 3)]):
        count.add_window(WindowLaid(index=index, frame_seqs=seqs, **common))  # type: ignore[arg-type]
    count.add_dropped(FramesDropped(request_id="r", seqs=(4, 5), reason="sampled_out"))
    body = count.body()
    assert body["frames"] == {"used": 4, "dropped": {"sampled_out": 2}, "total": 6}
    assert body["evs"] == {"cells": 8, "kept": 6, "encoder_cells": 4} and body["windows"] == 2


def test_a_session_from_start_to_end(make_client: MakeClient) -> None:
    engine = StreamingEngine()
    with make_client(engine).websocket_connect(PATH) as socket:
        assert hear(socket, "session.created")[0]["session"]["type"] == "embedding"
        say(socket, "session.update", session={"type": "embedding", "gate_windows": True,
                                               "output": {"include": [], "encoding_format": "base64"}})  # fmt: skip
        session = hear(socket, "session.updated")[0]["session"]
        assert session["window"]["stride_s"] == 2.0 and session["dim"] == 4 and session["gate_windows"] is True
        say(socket, "input_video_buffer.append", image=encode(JPEG), timestamp_s=30.0)
        done = hear(socket, "embedding.done")[0]
        assert done["start_sec"] == 30.0 and "evs" not in done and isinstance(done["embedding"], str)
        say(socket, "session.update", session={"type": "embedding"}, event_id="late")
        assert hear(socket, "error")[0]["error"] | {"message": ""} == {
            "message": "", "type": "invalid_request_error", "param": "session", "code": "session_busy",
            "event_id": "late",
        }  # fmt: skip
        say(socket, "input_video_buffer.commit")
        assert hear(socket, "input_video_buffer.committed")[0]["windows"] == 1
    assert len(engine.streams) == 1 and engine.streams[0].request.gate == "changed"
    assert wait_until(lambda: engine.streams[0].is_closed)


def test_limits_of_time(make_client: MakeClient) -> None:
    """Silence ends a session, and so does age, after a warning; frames in no window are named before that."""
    engine = StreamingEngine()
    with make_client(engine, realtime_idle_s=0.8).websocket_connect(PATH) as socket:
        hear(socket, "session.created")
        socket.send_bytes(b"held")
        events = hear(socket, "session.stats")
        kinds = [event["type"] for event in events]
        assert kinds == ["input_video_buffer.dropped", "input_video_buffer.cleared", "error", "session.stats"]
        assert events[2]["error"]["code"] == "session_idle"
        assert events[3]["stats"]["frames"] == {"used": 0, "dropped": {"closed": 1}, "total": 1}
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_json()
        assert closed.value.code == 1000
    with make_client(engine, realtime_session_s=0.7).websocket_connect(PATH) as socket:
        hear(socket, "session.created")
        stop = threading.Event()

        def talk() -> None:
            while not stop.wait(0.05):
                say(socket, "input_video_buffer.append", video=encode(b"xx"))

        talker = threading.Thread(target=talk)
        talker.start()
        events = hear(socket, "session.stats")
        stop.set()
        talker.join()
    assert [event["type"] for event in events].count("session.expiring") == 1
    assert [event["error"]["code"] for event in events if event["type"] == "error"] == ["session_expired"]


def test_a_broken_stream_ends_the_session(make_client: MakeClient) -> None:
    with make_client(StreamingEngine()).websocket_connect(PATH) as socket:
        hear(socket, "session.created")
        socket.send_bytes(b"broken")
        events = hear(socket, "session.stats")
        assert events[0]["error"]["code"] == "undecodable"
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_json()
        assert closed.value.code == 1008


def test_other_pages_are_refused(make_client: MakeClient) -> None:
    """A browser says whose page opens a socket; the server's own and those allowed may."""
    client = make_client(StreamingEngine(), allowed_origins=["https://friend.example"])
    for origin in ("http://testserver", "https://friend.example"):
        with client.websocket_connect(PATH, headers={"origin": origin}) as socket:
            hear(socket, "session.created")
    with (
        pytest.raises(WebSocketDisconnect),
        client.websocket_connect(PATH, headers={"origin": "https://evil.example"}) as socket,
    ):
        socket.receive_json()


def test_a_session_needs_a_key_where_there_are_keys(make_client: MakeClient) -> None:
    client = make_client(StreamingEngine(), api_key=["secret"])
    with client.websocket_connect(PATH, headers={"authorization": "Bearer secret"}) as socket:
        hear(socket, "session.created")
    with pytest.raises(WebSocketDisconnect), client.websocket_connect(PATH) as socket:
        socket.receive_json()


def test_the_server_stops_after_its_sessions(start_server: StartServer) -> None:
    """What came is embedded, the client is told, and the socket is closed as one that goes away."""
    server = start_server(StreamingEngine(), shutdown_grace_s=5.0)
    with connect(server.url.replace("http", "ws") + PATH) as socket:
        assert json.loads(socket.recv())["type"] == "session.created"
        socket.send(b"held")
        assert wait_until(lambda: len(server.engine.streams) == 1)  # type: ignore[attr-defined]
        server.stop()
        kinds = [json.loads(message)["type"] for message in socket]
        assert socket.close_code == 1001
    assert kinds == [
        "session.expiring", "embedding.done", "input_video_buffer.committed", "error", "session.stats",
    ]  # fmt: skip
