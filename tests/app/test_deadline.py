"""A client's own deadline: an error of its own kind, whatever was being waited for, and the engine is told to stop."""

from __future__ import annotations

from typing import Any

import pytest

from tests.app.conftest import MakeClient, user
from tests.app.fake_engine import FakeEngine

URL = "/v1/chat/completions"


def stuck_at(place: int) -> FakeEngine:
    """Never gets to step `place`; -1: never accepts."""
    engine = FakeEngine("hello")
    if place < 0:
        engine.submit_gate.clear()
    else:
        engine.step_gate = lambda step: step < place
    return engine


@pytest.mark.parametrize("place", [-1, 0, 3])
def test_a_body_that_is_late_is_a_504(make_client: MakeClient, place: int) -> None:
    engine = stuck_at(place)
    reply = make_client(engine).post(URL, json={"messages": user(), "timeout_s": 0.1})
    assert reply.status_code == 504
    assert (reply.json()["error"]["code"], reply.json()["error"]["param"]) == ("deadline", "timeout_s")
    assert engine.live == set()


@pytest.mark.parametrize("place", [0, 3])
def test_a_stream_that_is_late_ends_with_an_error(make_client: MakeClient, place: int) -> None:
    engine = stuck_at(place)
    # Long enough for three steps of nothing, whatever else runs on the machine.
    reply = make_client(engine).post(URL, json={"messages": user(), "timeout_s": 1.5, "stream": True})
    assert reply.status_code == 200
    assert '"code":"deadline"' in reply.text.rstrip().split("\n\n")[-1]
    assert reply.text.count('"content":"') == place + (place > 0)  # the first event of all has none of its own
    assert engine.live == set()


def test_what_comes_in_time_is_not_touched(make_client: MakeClient) -> None:
    client = make_client(FakeEngine("hello"))
    reply = client.post(URL, json={"messages": user(), "timeout_s": 60})
    assert reply.json()["choices"][0]["message"]["content"] == "hello"


def test_a_form_has_it_too(make_client: MakeClient) -> None:
    reply = make_client(stuck_at(2)).post(
        "/v1/videos/ask", files={"file": b"clip"}, data={"prompt": "?", "timeout_s": "0.1"}
    )
    assert (reply.status_code, reply.json()["error"]["param"]) == (504, "timeout_s")


@pytest.mark.parametrize("value", [0, -1, 1e9, "5", True])
def test_senseless_ones_are_refused(make_client: MakeClient, value: Any) -> None:
    reply = make_client(FakeEngine()).post(URL, json={"messages": user(), "timeout_s": value})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "timeout_s")
