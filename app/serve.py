"""Owns `evs serve`: the engine is loaded first, with progress, and the port is opened when it can answer.

Knows nothing of routes or of what the engine does.
"""

from __future__ import annotations

import asyncio
import socket

from rich.console import Console

from app.log import log_event
from app.model_path import note_demo, resolve_model
from app.progress import show_loading
from app.server import create_app, make_uvicorn_server
from app.settings import Settings
from runner.client import EngineClient, start_engine


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
        # Made before the engine, so that nothing slow lies between its loading and the server's own signal handling.
        server = make_uvicorn_server(create_app(settings, hand_over), settings)
        with show_loading(console) as on_loading:
            client = await start_engine(settings.to_engine_config(), where="process", on_loading=on_loading)
        loaded.set_result(client)
        try:
            await server.serve(sockets=[listener])
        finally:
            if client.is_alive:  # the application never started
                await client.close(grace_s=0.0)


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
