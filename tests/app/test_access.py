"""Round every request: an id, one log line without its content, and our own faults caught."""

from __future__ import annotations

import logging

import pytest

from app.log import LOGGER
from tests.app.conftest import MakeClient, user
from tests.app.fake_engine import FakeEngine


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, logger=LOGGER.name)
    return caplog


def test_log_line_says_what_happened_and_nothing_of_the_content(make_client: MakeClient, log) -> None:
    client = make_client(FakeEngine("sesame answer"), api_key=["sesame-key"])
    headers = {"authorization": "Bearer sesame-key"}
    bodies = [
        {"messages": user("sesame prompt")},
        {"messages": user("x"), "sesame": 1},
        {"messages": user([{"type": "video_url", "video_url": {"url": "data:video/mp4;base64,sesame!"}}])},
    ]
    for body in bodies:
        client.post("/v1/chat/completions?q=sesame", json=body, headers=headers)
    client.post("/v1/videos/ask", files={"file": ("sesame.mp4", b"sesame")}, data={"prompt": "sesame"}, headers=headers)
    client.get("/sesame", headers={"authorization": "Bearer sesame"})
    lines = [record.getMessage() for record in log.records if record.name == "evserve"]
    assert "sesame" not in "".join(lines)
    requests = [line for line in lines if line.startswith("request id=")]
    assert [line.split("status=")[1].split()[0] for line in requests] == ["200", "400", "400", "200", "401"]


def test_ids_are_in_head_and_body(make_client: MakeClient) -> None:
    client = make_client()
    first = client.get("/health").headers["x-request-id"]
    assert first != client.get("/health").headers["x-request-id"]
    assert "x-request-id" in client.get("/nothing").headers


def test_our_own_fault_is_a_500_without_details(make_client: MakeClient, log) -> None:
    """The log has the traceback, the client has a sentence, the server goes on."""
    engine = FakeEngine(refuses=ZeroDivisionError("secret insides"))  # type: ignore[arg-type]
    client = make_client(engine)
    response = client.post("/v1/chat/completions", json={"messages": user()})
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert "secret" not in response.text
    assert any(record.exc_info for record in log.records)
    assert client.get("/health").status_code == 200


def test_cors_is_off_unless_asked_for(make_client: MakeClient) -> None:
    headers = {"origin": "https://a.example", "access-control-request-method": "POST"}
    assert "access-control-allow-origin" not in make_client().options("/v1/models", headers=headers).headers
    client = make_client(allowed_origins=["https://a.example"], api_key=["k"])
    assert client.options("/v1/models", headers=headers).headers["access-control-allow-origin"] == "https://a.example"
    refused = client.get("/v1/models", headers=headers)
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://a.example"
