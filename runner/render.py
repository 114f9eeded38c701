"""Shows what the engine would see for a chat: the hook for exact tests. Owns that picture of a request; runs
nothing."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from runner.admission import Laid
from runner.items import MediaItem
from runner.messages import Rendered, RenderedItem
from vision.patches import pixels_sha256


def render_request(request_id: str, laid: Laid, *, include_frames: bool) -> Rendered:
    return Rendered(
        request_id=request_id,
        prompt_token_ids=tuple(laid.prompt.token_ids.tolist()),
        position_ids=tuple(tuple(row) for row in laid.prompt.positions.tolist()),
        items=tuple(_render_item(item, include_frames) for item in laid.items),
        usage=laid.usage,
    )


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
