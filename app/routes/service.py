"""Owns the routes that say what the server is and how it does: models, health, readiness, metrics, the playground.

Knows nothing of requests for answers.
"""

from __future__ import annotations

import asyncio
import uuid
from importlib import resources
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse

from app.metrics import CONTENT_TYPE
from app.replies import model_card
from app.state import ServerState, get_state
from runner.errors import EngineDeadError

STATS_TIMEOUT_S = 2.0
# The page is one file and may speak only to its own server; blob: is the chosen video, shown before it is sent.
PAGE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; media-src blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

router = APIRouter(tags=["service"])


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    state = get_state(request)
    return {"object": "list", "data": [_card(state, name) for name in state.model_names]}


@router.get("/v1/models/{name:path}")
async def get_model(request: Request, name: str) -> dict[str, Any]:
    state = get_state(request)
    return _card(state, state.check_model(name))


@router.get("/health", response_model=None)
async def check_health(request: Request) -> Response:
    """200 while the engine lives and gives signs of it. Asks nothing of it, so it is fast under any load."""
    state = get_state(request)
    if (trouble := state.client.trouble) is not None:
        raise trouble
    return JSONResponse({"status": "ok"})


@router.get("/ready", response_model=None)
async def check_ready(request: Request) -> Response:
    """200 once the model is loaded, which it is before the port opens, until the server or its engine stops."""
    state = get_state(request)
    state.check_serving()
    if (trouble := state.client.trouble) is not None:
        raise trouble
    return JSONResponse({"status": "ready"})


@router.get("/metrics", response_model=None)
async def show_metrics(request: Request) -> Response:
    """Prometheus text. A busy or dead engine leaves only the HTTP side's numbers."""
    state = get_state(request)
    counters: dict[str, float] = {}
    gauges: dict[str, float] = {
        "evs:engine_up": float(state.client.trouble is None),
        "evs:realtime_sessions": len(state.sessions),
        "evs:files_stored": len(state.shelf),
        "evs:media_bytes_on_disk": state.store.quota.used_bytes,
    }
    try:
        stats = await asyncio.wait_for(state.client.stats(uuid.uuid4().hex), STATS_TIMEOUT_S)
        counters = stats.counters
        gauges |= stats.gauges
    except (TimeoutError, EngineDeadError):
        pass
    return Response(state.metrics.render(counters, gauges), headers={"Content-Type": CONTENT_TYPE})


@router.get("/", response_model=None, include_in_schema=False)
async def show_playground() -> Response:
    page = resources.files("app").joinpath("static", "index.html").read_text(encoding="utf-8")
    return HTMLResponse(page, headers={"Content-Security-Policy": PAGE_POLICY})


def _card(state: ServerState, name: str) -> dict[str, Any]:
    return model_card(name, state.started, state.client.info.max_model_len)
