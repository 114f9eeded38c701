"""Owns `WS /v1/realtime`: who may open a session, and how many. OpenAI's envelope, so that its client can speak here.

Knows nothing of what is said in a session.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast
from urllib.parse import urlsplit

from fastapi import APIRouter, WebSocket
from starlette.websockets import WebSocketDisconnect

from app.errors import describe_error, error_body
from app.realtime.config import Limits
from app.realtime.over import BAD_DATA, TRY_LATER
from app.realtime.session import Session
from app.state import ServerState
from runner.errors import RequestError

router = APIRouter(tags=["embeddings"])


@router.websocket("/v1/realtime")
async def open_session(socket: WebSocket) -> None:
    """What is refused is refused after the handshake, with an event that says why: a handshake cannot."""
    state = cast(ServerState, socket.app.state.server)
    if not is_origin_allowed(socket, state.settings.allowed_origins):
        await socket.close(BAD_DATA)  # before it is accepted: a 403
        return
    await socket.accept()
    try:
        model = state.check_model(socket.query_params.get("model"))
        state.check_serving()
        state.sessions.check_room()
    except RequestError as error:
        await _refuse(socket, error)
        return
    settings = state.settings
    limits = Limits(
        idle_s=settings.realtime_idle_s, session_s=settings.realtime_session_s,
        max_message_bytes=settings.realtime_max_message,
    )  # fmt: skip
    session = Session(socket, state, model=model, limits=limits)
    with state.sessions.holding(session):
        await session.run()


def is_origin_allowed(socket: WebSocket, allowed: Sequence[str]) -> bool:
    """Browsers let any page open a socket anywhere and say whose page it is; other clients say nothing."""
    origin = socket.headers.get("origin")
    if origin is None or "*" in allowed or origin in allowed:
        return True
    return urlsplit(origin).netloc == socket.headers.get("host")


async def _refuse(socket: WebSocket, error: RequestError) -> None:
    try:
        await socket.send_json({"type": "error", "event_id": "event_0", **error_body(describe_error(error))})
        await socket.close(TRY_LATER if error.kind in ("queue_full", "unavailable") else BAD_DATA)
    except (WebSocketDisconnect, RuntimeError):
        return
