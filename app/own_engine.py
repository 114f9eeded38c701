"""Owns the engine of a command that ends with its work: loaded with a progress bar, closed whatever happens, and its
failures told as such.

Knows nothing of what it is asked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from rich.console import Console

from app.model_path import resolve_model
from app.progress import show_loading
from app.settings import Settings
from runner.client import EngineClient, GenerationStream, start_engine
from runner.errors import EngineError
from runner.messages import Delta


@asynccontextmanager
async def own_engine(
    settings: Settings, console: Console, *, where: Literal["process", "thread"] = "thread"
) -> AsyncIterator[EngineClient]:
    """The engine of `settings.model`. Raises EngineStartError, and FileNotFoundError where there is no demo model."""
    settings = settings.model_copy(update={"model": resolve_model(settings.model), "log_level": "warning"})
    with show_loading(console) as on_loading:
        client = await start_engine(settings.to_engine_config(), where=where, on_loading=on_loading)
    try:
        yield client
    finally:
        await client.close(grace_s=0.0)


async def follow_answer(stream: GenerationStream) -> AsyncIterator[Delta]:
    """An answer as it comes. Raises EngineError where it breaks off."""
    async for delta in stream:
        if delta.finish_reason in ("error", "abort"):
            raise EngineError("the engine failed on this request; its log says why")
        yield delta
