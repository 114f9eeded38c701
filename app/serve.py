"""Owns `evs serve`: the engine is loaded first, with progress, and the port is opened when it can answer.

Knows nothing of routes or of what the engine does. The web framework is imported while the engine's process loads: it
takes the better part of a second.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from rich.console import Console

from app.log import log_event
from app.model_path import note_demo, resolve_model
from app.progress import show_loading
from app.settings import Settings
from runner.client import EngineClient, start_engine

if TYPE_CHECKING:
    from uvicorn import Server


async def serve_forever(settings: Settings) -> None:
    """Run until a signal says stop. A port that is taken is found before the model is loaded."""
    console = Console(stderr=True)
    note_demo(settings.model, console)
    settings = settings.model_copy(update={"model": resolve_model(settings.model), **_keep_name(settings)})
    loaded: asyncio.Future[EngineClient] = asyncio.get_running_loop().create_future()

    async def hand_over() -> EngineClient:
        client = await loaded
        announce(client, listener, settings)
        return client

    with _listen(settings) as listener:
        with show_loading(console) as on_loading:
            starting = asyncio.create_task(
                start_engine(settings.to_engine_config(), where="process", on_loading=on_loading)
            )
            try:
                await asyncio.sleep(0)  # its process begins
                # Made while it loads, so that nothing slow lies between that and the server's own signal handling.
                server = _make_server(settings, hand_over)
            except BaseException:
                starting.cancel()
                await asyncio.wait([starting])
                raise
            client = await starting
        loaded.set_result(client)
        try:
            await server.serve(sockets=[listener])
        finally:
            if client.is_alive:  # the application never started
                await client.close(grace_s=0.0)


def _make_server(settings: Settings, hand_over: Callable[[], Awaitable[EngineClient]]) -> Server:
    from app.server import create_app, make_uvicorn_server

    return make_uvicorn_server(create_app(settings, hand_over), settings)


def announce(client: EngineClient, listener: socket.socket, settings: Settings) -> None:
    for note in client.info.notes:
        log_event("note", text=note)
    host, port = listener.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    log_event("serving", model=settings.model_names[0], url=f"http://{host}:{port}", device=client.info.device)


def _keep_name(settings: Settings) -> dict[str, list[str]]:
    """The demo model is served as `demo`, not under the name of the folder it happens to be in."""
    return {"served_model_name": list(settings.model_names)}


def _listen(settings: Settings) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        return socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as error:
        raise OSError(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror}; choose another with --port"
        ) from error
