"""Owns `POST /v1/videos/overlay`: a clip in, a picture of what is kept of it out.

Knows nothing of how cells are chosen or drawn.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Literal

from fastapi import APIRouter, Request, Response

from app.convert import convert_evs, read_video_knobs
from app.formfields import build_json
from app.hangup import run_while_connected
from app.openapi import describe_form
from app.routes.ask import find_clip, naming_clip, read_upload
from app.schemas import OverlayRequest
from app.state import get_state
from runner.messages import Overlay
from runner.requests import MediaPart

FORMS: dict[str, Literal["sheet", "animation"]] = {"png": "sheet", "webp": "animation"}

router = APIRouter(tags=["videos"])


@router.post("/v1/videos/overlay", openapi_extra=describe_form(OverlayRequest, file="optional"), response_model=None)
async def draw_overlay(request: Request) -> Response:
    """The sampled frames with dropped cells dimmed: a PNG sheet, or an animated WebP with `format=webp`."""
    state = get_state(request)
    with ExitStack() as resources:
        form = await read_upload(request, state, resources)
        body = OverlayRequest.model_validate_json(build_json(form.fields, OverlayRequest))
        state.check_model(body.model)
        source = find_clip(form, body.file_id, request, resources)
        wanted = Overlay(
            request_id=f"overlay-{request.state.request_id}",
            clip=MediaPart(kind="video", source=source, video=read_video_knobs(body.video)),
            evs=convert_evs(body.evs),
            form=FORMS[body.format or "png"],
        )
        with naming_clip("file" if body.file_id is None else "file_id"):
            drawn = await run_while_connected(request, state.client.draw(wanted))
    usage = drawn.usage.evs
    assert usage is not None
    headers = {"x-evs-method": usage.method, "x-evs-cells": str(usage.cells), "x-evs-kept": str(usage.kept)}
    return Response(drawn.data, media_type=drawn.media_type, headers=headers)
