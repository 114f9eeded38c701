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
from runner.errors import RequestError
from runner.messages import Overlay
from runner.requests import MediaPart, StoredFile

FORMS = {".png": "sheet", ".webp": "animation"}


async def draw_once(settings: Settings, clip: Path, output: Path, look: Look) -> None:
    form = FORMS.get(output.suffix.lower())
    if form is None:
        raise RequestError("invalid", f"--output {output.name}: end it in .png or .webp", param="output")
    if not output.parent.is_dir():
        raise RequestError("invalid", f"--output {output}: its folder does not exist; make it first", param="output")
    console = Console(stderr=True)
    part = MediaPart(kind="video", source=StoredFile(path=str(clip.resolve())), video=look.video)
    request = Overlay(request_id=uuid.uuid4().hex, clip=part, evs=look.evs, form=form)  # type: ignore[arg-type]
    async with own_engine(settings, console) as client:
        drawn = await client.draw(request)
    output.write_bytes(drawn.data)
    usage = drawn.usage.evs
    assert usage is not None
    line = f"{output}: {usage.kept} of {usage.cells} cells kept (evs {usage.method}), {usage.frames} frames"
    console.print(line, highlight=False, soft_wrap=True)
