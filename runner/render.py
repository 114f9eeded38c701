"""Shows what the engine would see for a chat: the hook for exact tests, and the overlay for eyes. Owns these pictures
of a request; runs nothing."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from evs.overlay import Overlay as Picture
from evs.overlay import draw_animation, draw_sheet
from runner.admission import Laid
from runner.cells import cell_grid
from runner.items import MediaItem
from runner.messages import Drawn, Overlay, Rendered, RenderedItem
from vision.patches import pixels_sha256


def render_request(request_id: str, laid: Laid, *, include_frames: bool) -> Rendered:
    return Rendered(
        request_id=request_id,
        prompt_token_ids=tuple(laid.prompt.token_ids.tolist()),
        position_ids=tuple(tuple(row) for row in laid.prompt.positions.tolist()),
        items=tuple(_render_item(item, include_frames) for item in laid.items),
        usage=laid.usage,
    )


def draw_overlay(request: Overlay, laid: Laid) -> Drawn:
    """The one clip of `laid`, dropped cells dimmed."""
    item = laid.items[0]
    picture = Picture(
        pixels=item.grid.pixels, times_s=item.grid.times_s, cells=cell_grid(item.grid), selection=item.selection
    )
    draw, media_type = (draw_sheet, "image/png") if request.form == "sheet" else (draw_animation, "image/webp")
    return Drawn(request_id=request.request_id, data=draw(picture), media_type=media_type, usage=laid.usage)


def _render_item(item: MediaItem, include_frames: bool) -> RenderedItem:
    return RenderedItem(
        kind=item.kind,
        timestamps_s=item.frames.times_s,
        size=item.frames.size,
        slots=item.grid.slots,
        grid=item.grid.grid,
        kept=tuple(tuple(np.flatnonzero(slot).tolist()) for slot in item.selection.keep),
        pixels_sha256=pixels_sha256(item.grid),
        frames_png=tuple(_png(frame) for frame in item.frames.pixels) if include_frames else (),
    )


def _png(frame: np.ndarray) -> bytes:
    """frame: (3, H, W) uint8."""
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(frame.transpose(1, 2, 0))).save(buffer, format="PNG")
    return buffer.getvalue()
