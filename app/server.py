"""Owns the making of the web application and its life: engine first, then requests, then both ends in order.

Knows nothing of what routes do.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from app.access import Access
from app.addresses import Network
from app.auth import KeyCheck
from app.errors import ApiError, ClientGoneError, error_response
from app.metrics import Metrics
from app.realtime.describe import describe_sockets
from app.routes import ask, chat, docs, embeddings, files, overlay, realtime, service
from app.settings import Settings
from app.state import make_state
from app.version import VERSION
from runner.client import EngineClient
from runner.errors import EngineError

ClientFactory = Callable[[], Awaitable[EngineClient]]


class _Documented(FastAPI):
    """OpenAPI has no sockets, so the document says in an extension what may be said over ours."""

    def openapi(self) -> dict[str, Any]:
        return {**super().openapi(), "x-websockets": describe_sockets()}


def create_app(settings: Settings, client_factory: ClientFactory, network: Network | None = None) -> FastAPI:
    """The application. `client_factory` is awaited at start-up; the client it gives is closed at shut-down.

    `network` is what media is fetched through: the public internet unless a test brings another.
    """
    metrics = Metrics()

    @asynccontextmanager
    async def live(app: FastAPI) -> AsyncIterator[None]:
        client = await client_factory()
        try:
            app.state.server = state = make_state(settings, client, metrics, network or Network())
            sweeping = asyncio.create_task(state.shelf.sweep_forever())
            try:
                yield
            finally:
                sweeping.cancel()
                state.store.close()
        finally:
            await client.close(grace_s=settings.shutdown_grace_s)

    app = _Documented(
        title="EVServe", version=VERSION, lifespan=live, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    for module in (chat, ask, overlay, embeddings, realtime, files, service, docs):
        app.include_router(module.router)
    for kind in (ApiError, ClientGoneError, EngineError, ValidationError):
        app.add_exception_handler(kind, _answer_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    # The last added is the outermost: a browser's preflight carries no key.
    app.add_middleware(KeyCheck, keys=settings.api_key)
    app.add_middleware(Access, metrics=metrics)
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=settings.allowed_origins, allow_methods=["*"], allow_headers=["*"]
        )
    return app


async def _answer_error(_: Request, error: Exception) -> Response:
    return error_response(error)


async def _answer_http_error(_: Request, error: Exception) -> Response:
    """Starlette's own refusals (no such route, wrong method) in OpenAI's shape."""
    assert isinstance(error, HTTPException)
    messages = {404: "there is no such route; see /docs", 405: "this route does not take this method; see /docs"}
    message = messages.get(error.status_code, "the request is malformed")
    code = {404: "unknown_route", 405: "method_not_allowed"}.get(error.status_code)
    return error_response(ApiError(error.status_code, message, code=code, headers=error.headers or {}))


def make_uvicorn_server(app: FastAPI, settings: Settings) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        root_path=settings.root_path,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        ws_max_size=settings.realtime_max_message,
        ws_per_message_deflate=False,  # media is compressed as it is; and a kilobyte could grow to a message's limit
        timeout_graceful_shutdown=int(settings.shutdown_grace_s) + 1,
    )
    return _DrainingServer(config)


class _DrainingServer(uvicorn.Server):
    """From the moment it is told to stop, requests that are still arriving are turned away with a 503."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app = self.config.app
        assert isinstance(app, FastAPI)
        state = app.state.server
        state.phase = "draining"
        await state.sessions.drain(state.settings.shutdown_grace_s)
        await super().shutdown(sockets)
