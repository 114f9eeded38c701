"""What the Qwen-VL families share: placeholders, the decoder's shape, image requests and M-RoPE positions. Owns no
model and nothing that differs between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from runner.families import common
from runner.families.base import DecoderShape, DenseSpan, Kind
from runner.items import MediaItem
from runner.requests import VideoOptions
from vision.request import DecodeRequest
from vision.resize import ImageSmartResize

START, END = "<|vision_start|>", "<|vision_end|>"
PADS: dict[Kind, str] = {"image": "<|image_pad|>", "video": "<|video_pad|>"}


def pad_ids(config: Any) -> dict[Kind, int]:
    return {"image": config.image_token_id, "video": config.video_token_id}


def decoder_shape(model: Any, *, num_planes: int) -> DecoderShape:
    text, decoder = model.config.text_config, model.model.language_model
    return common.decoder_shape(text, decoder, rope_axes=3, num_planes=num_planes)


def image_request(processor: Any, options: VideoOptions, *, factor: int) -> DecodeRequest:
    """factor: pixels of one cell's side."""
    low, high = common.picture_bounds(options, low=processor.size["shortest_edge"], high=processor.size["longest_edge"])
    return DecodeRequest(kind="image", resize=ImageSmartResize(factor=factor, min_pixels=low, max_pixels=high))


def mrope_positions(
    length: int,
    spans: Sequence[DenseSpan],
    items: Sequence[MediaItem],
    *,
    slot_ticks: Callable[[MediaItem], np.ndarray],
) -> np.ndarray:
    """(3, length) int64. Text counts on along all axes at once; a span's cells stand at (tick of their slot, row,
    column) from where the text stopped, and the text after it continues at the larger side.

    slot_ticks: (T,) int64 of an item, counted from its span's start.
    """
    positions = np.empty((3, length), dtype=np.int64)
    row = base = 0
    for span in spans:
        gap = span.start - row
        positions[:, row : span.start] = base + np.arange(gap)
        base += gap
        item = items[span.item]
        height, width = item.grid.grid
        row = span.start + len(span.cells)
        slot, within = np.divmod(span.cells, height * width)
        positions[:, span.start : row] = base + np.stack((slot_ticks(item)[slot], within // width, within % width))
        base += max(height, width)
    positions[:, row:] = base + np.arange(length - row)
    return positions
