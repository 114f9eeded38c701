"""What the Qwen-VL families share: placeholders, the decoder's shape, image requests, M-RoPE positions and the patches
of slots. Owns no model and nothing that differs between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from runner.families.base import DecoderShape, DenseSpan, Kind
from runner.items import MediaItem
from runner.requests import VideoOptions
from vision.patches import pixel_values
from vision.request import DecodeRequest
from vision.resize import ImageSmartResize
from vision.towers.packed import PatchBatch, patch_places

START, END = "<|vision_start|>", "<|vision_end|>"
PADS: dict[Kind, str] = {"image": "<|image_pad|>", "video": "<|video_pad|>"}


def pad_ids(config: Any) -> dict[Kind, int]:
    return {"image": config.image_token_id, "video": config.video_token_id}


def decoder_shape(model: Any, *, num_planes: int) -> DecoderShape:
    text = model.config.text_config
    return DecoderShape(
        num_layers=text.num_hidden_layers,
        num_kv_heads=text.num_key_value_heads,
        head_dim=model.model.language_model.layers[0].self_attn.head_dim,
        hidden_size=text.hidden_size,
        vocab_size=text.vocab_size,
        max_positions=text.max_position_embeddings,
        rope_axes=3,
        num_planes=num_planes,
    )


def image_request(processor: Any, options: VideoOptions, *, factor: int) -> DecodeRequest:
    """factor: pixels of one cell's side."""
    size = processor.size
    resize = ImageSmartResize(
        factor=factor,
        min_pixels=options.min_pixels or size["shortest_edge"],
        max_pixels=options.max_pixels or size["longest_edge"],
    )
    return DecodeRequest(kind="image", resize=resize)


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


def slot_patches(item: MediaItem, slot_start: int, slot_stop: int, *, processor: Any) -> PatchBatch:
    """Slots [slot_start, slot_stop) of an item, each a segment. processor: transformers' for the item's kind."""
    grid = item.grid
    height, width = (side * grid.merge_size for side in grid.grid)
    rows, cols = patch_places(height, width, grid.merge_size)
    slots, count = slot_stop - slot_start, height * width
    pixels = pixel_values(
        grid,
        slot_start,
        slot_stop,
        mean=processor.image_mean,
        std=processor.image_std,
        rescale=processor.rescale_factor,
    )
    return PatchBatch(
        pixel_values=pixels,
        rows=np.tile(rows, slots),
        cols=np.tile(cols, slots),
        heights=np.full(slots * count, height),
        widths=np.full(slots * count, width),
        cu_seqlens=np.arange(slots + 1) * count,
    )
