"""Keys: every route but two exact paths, WebSockets included, by the raw path."""

from __future__ import annotations

import pytest
from starlette.websockets import WebSocketDisconnect

from app.auth import KeyCheck
from tests.app.conftest import MakeClient

KEYS = ["alpha", "beta-ключ"]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models",
        "/v1/chat/completions",
        "/metrics",
        "/ready",
        "/docs",
        "/openapi.json",
        "/nothing",
        "/health/",
        "/health/../v1/models",
        "/health%2f..%2fv1/models",
        "/%2e/v1/models",
        "/HEALTH",
        "/v1/models?x=/health",
        "/;/health",
    ],
)
def test_everything_else_is_closed(make_client: MakeClient, path: str) -> None:
    """Unknown paths too: a stranger cannot even ask which routes exist."""
    response = make_client(api_key=KEYS).get(path)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", ["/", "/health"])
def test_open_paths(make_client: MakeClient, path: str) -> None:
    assert make_client(api_key=KEYS).get(path).status_code == 200


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Bearer alpha", 200),
        ("bearer alpha", 200),
        ("Bearer alph", 401),
        ("Bearer alphaa", 401),
        ("Bearer ", 401),
        ("Bearer", 401),
        ("alpha", 401),
        ("Basic alpha", 401),
        ("", 401),
    ],
)
def test_keys(make_client: MakeClient, header: str, status: int) -> None:
    client = make_client(api_key=KEYS)
    assert client.get("/v1/models", headers={"authorization": header.encode("latin-1")}).status_code == status


def test_a_host_header_cannot_move_the_path(make_client: MakeClient) -> None:
    """A URL put together from headers would read /health here."""
    response = make_client(api_key=KEYS).get("/v1/models", headers={"host": "x/health?"})
    assert response.status_code == 401


def test_without_keys_all_is_open(make_client: MakeClient) -> None:
    assert make_client().get("/v1/models").status_code == 200


def test_websockets_need_a_key_too(make_client: MakeClient) -> None:
    with pytest.raises(WebSocketDisconnect) as caught, make_client(api_key=KEYS).websocket_connect("/v1/realtime"):
        pass
    assert caught.value.code == 1008


async def test_root_path_is_not_part_of_the_path() -> None:
    """Behind a proxy the same two paths are open, below its prefix."""
    reached = []

    async def inner(scope, receive, send) -> None:
        reached.append(scope["path"])

    async def send(message: dict) -> None:
        pass

    for path in ("/evs/health", "/evs/", "/evs/v1/models", "/evs/evs/health", "/evs//health"):
        scope = {"type": "http", "path": path, "root_path": "/evs", "headers": [], "method": "GET"}
        await KeyCheck(inner, KEYS)(scope, None, send)
    assert reached == ["/evs/health", "/evs/"]
