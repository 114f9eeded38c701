"""Owns `evs overlay`: one clip, one picture file of what is kept of it.

Knows nothing of HTTP or of how cells are chosen.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from rich.console import Console

from app.look import Look
from app.own_engine import own_engine
from app.settings import Settings
from runner.client import EngineClient
from runner.errors import RequestError
from runner.messages import Overlay, OverlayForm
from runner.requests import MediaPart, StoredFile

FORMS: dict[str, OverlayForm] = {".png": "sheet", ".webp": "animation"}


async def draw_once(settings: Settings, clip: Path, output: Path, look: Look) -> None:
    check_output(output, "output")
    console = Console(stderr=True)
    async with own_engine(settings, console) as client:
        await draw(client, clip, output, look, console)


def check_output(output: Path, param: str) -> None:
    """Before a model is loaded. Raises RequestError for a file that cannot be drawn; param: the flag that named it."""
    if output.suffix.lower() not in FORMS:
        raise RequestError("invalid", f"--{param} {output.name}: end it in .png or .webp", param=param)
    if not output.parent.is_dir():
        raise RequestError("invalid", f"--{param} {output}: its folder does not exist; make it first", param=param)


async def draw(client: EngineClient, clip: Path, output: Path, look: Look, console: Console) -> None:
    """Write the picture and say where; `output` as check_output wants it."""
    part = MediaPart(kind="video", source=StoredFile(path=str(clip.resolve())), video=look.video)
    form = FORMS[output.suffix.lower()]
    drawn = await client.draw(Overlay(request_id=uuid.uuid4().hex, clip=part, evs=look.evs, form=form))
    output.write_bytes(drawn.data)
    usage = drawn.usage.evs
    assert usage is not None
    line = f"{output}: {usage.kept} of {usage.cells} cells kept (evs {usage.method}), {usage.frames} frames"
    console.print(line, highlight=False, soft_wrap=True)
