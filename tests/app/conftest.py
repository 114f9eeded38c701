"""Servers with a scripted engine: in process for shapes and bytes, on a loopback port for real clients."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from openai import OpenAI
from starlette.testclient import TestClient

from app.addresses import Network
from app.server import create_app, make_uvicorn_server
from app.settings import load_settings
from tests.app.fake_engine import FakeEngine

StartServer = Callable[..., "RunningServer"]
MakeClient = Callable[..., TestClient]


@dataclass
class RunningServer:
    url: str
    port: int
    engine: FakeEngine
    media_dir: Path
    app: FastAPI
    stop: Callable[[], None]

    def openai(self, **options: Any) -> OpenAI:
        return OpenAI(base_url=self.url + "/v1", api_key="key", max_retries=0, **options)

    def is_clean(self) -> bool:
        return not self.engine.live and list_uploads(self.media_dir) == []


def list_uploads(folder: Path) -> list[str]:
    """What uploads have left under a media folder, or under one above it."""
    runs = (entry for entry in os.walk(folder) if Path(entry[0]).name.startswith("run-"))
    return [name for _, folders, names in runs for name in (*folders, *names) if name != ".lock"]


def wait_until(condition: Callable[[], bool], timeout_s: float = 60.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


@pytest.fixture
def make_client(tmp_path: Path) -> Iterator[MakeClient]:
    """make_client(engine, network, **settings) -> a client of an application in this process, with its `engine`."""
    with contextlib.ExitStack() as stack:

        def make(engine: FakeEngine | None = None, network: Network | None = None, **given: Any) -> TestClient:
            engine = engine or FakeEngine()

            async def factory() -> Any:
                return engine

            settings = load_settings(None, **{"model": "fake", "media_dir": tmp_path / "media", **given})
            client = TestClient(create_app(settings, factory, network))
            client.engine = engine  # type: ignore[attr-defined]
            return stack.enter_context(client)

        yield make


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """start_server(engine, network, **settings) -> a real server on a loopback port."""
    with contextlib.ExitStack() as stack:

        def start(engine: FakeEngine | None = None, network: Network | None = None, **given: Any) -> RunningServer:
            return stack.enter_context(_run_server(engine or FakeEngine(), network, tmp_path / "media", given))

        yield start


@contextlib.contextmanager
def _run_server(
    engine: FakeEngine, network: Network | None, media_dir: Path, given: dict[str, Any]
) -> Iterator[RunningServer]:
    async def factory() -> Any:
        return engine

    settings = load_settings(None, **{"model": "fake", "media_dir": media_dir, "shutdown_grace_s": 0.0, **given})
    app = create_app(settings, factory, network)
    server = make_uvicorn_server(app, settings)

    def stop() -> None:
        server.should_exit = True

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            assert wait_until(lambda: server.started)
            port = listener.getsockname()[1]
            yield RunningServer(f"http://127.0.0.1:{port}", port, engine, media_dir, app, stop)
        finally:
            stop()
            thread.join(60)
            assert not thread.is_alive()


def user(content: Any = "hi") -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]
