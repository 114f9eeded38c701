"""What several families share: chats as transformers' templates want them, the decoder's shape, generation defaults,
sampling options, the patches of slots. Owns no model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from attention.protocol import LayerAttention
from runner.errors import EngineStartError
from runner.families.base import DecoderShape, GenerationDefaults
from runner.items import MediaItem
from runner.requests import ChatMessage, TextPart, VideoOptions
from vision.errors import InvalidMediaOptionError
from vision.patches import pixel_values
from vision.sampling import SamplingPolicy
from vision.towers.keys import KeyRows, borrow_keys, hand_over_keys
from vision.towers.packed import PatchBatch, patch_places
from vision.towers.pooling import CellTaps

# Holds a clip's place in a chat whose template knows images only: text to the template, and no text of a user's.
CLIP_MARK = "\ue002clip\ue003"


def chat_with_marks(chat: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """As chat_as_dicts, with clips as the text CLIP_MARK."""
    dicts = chat_as_dicts(chat)
    for message in dicts:
        message["content"] = [
            {"type": "text", "text": CLIP_MARK} if part["type"] == "video" else part for part in message["content"]
        ]
    return dicts


def chat_as_dicts(chat: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages with their parts in written order; media are bare {"type": kind}: a template only places them. A turn
    without parts gets an empty one: templates look at the first."""

    def part(p: Any) -> dict[str, str]:
        return {"type": "text", "text": p.text} if isinstance(p, TextPart) else {"type": p.kind}

    return [
        {"role": message.role, "content": [part(p) for p in message.parts or (TextPart(text=""),)]} for message in chat
    ]


def decoder_shape(text_config: Any, text_model: Any, *, rope_axes: int, num_planes: int) -> DecoderShape:
    return DecoderShape(
        num_layers=text_config.num_hidden_layers,
        num_kv_heads=text_config.num_key_value_heads,
        head_dim=text_model.layers[0].self_attn.head_dim,
        hidden_size=text_config.hidden_size,
        vocab_size=text_config.vocab_size,
        max_positions=text_config.max_position_embeddings,
        rope_axes=rope_axes,
        num_planes=num_planes,
        layers=layers_of(text_config),
    )


def layers_of(text_config: Any) -> tuple[LayerAttention, ...]:
    """What each layer sees: its window where it has one. Empty where all see everything. Raises EngineStartError for
    layers of other kinds."""
    types = getattr(text_config, "layer_types", None) or ()
    unknown = set(types) - {"full_attention", "sliding_attention"}
    if unknown:
        raise EngineStartError(f"the checkpoint's decoder has layers of type {min(unknown)}, which are not served")
    if "sliding_attention" not in types:
        return ()
    window = text_config.sliding_window
    return tuple(LayerAttention(window=window if kind == "sliding_attention" else None) for kind in types)


def generation_defaults(model: Any, *, suppressed: tuple[int, ...]) -> GenerationDefaults:
    """Read the checkpoint's generation_config; `suppressed` are placeholder ids that must never be generated."""
    config = model.generation_config
    eos = config.eos_token_id if config.eos_token_id is not None else model.config.get_text_config().eos_token_id
    eos_ids = tuple(eos) if isinstance(eos, list | tuple) else (() if eos is None else (eos,))

    def value(name: str, default: float) -> float:
        found = getattr(config, name, None)
        return default if found is None else found

    return GenerationDefaults(
        temperature=value("temperature", 1.0) if config.do_sample else 0.0,
        top_p=value("top_p", 1.0),
        top_k=int(value("top_k", 0)) if config.do_sample else 0,
        min_p=value("min_p", 0.0),
        repetition_penalty=value("repetition_penalty", 1.0),
        max_tokens=config.max_new_tokens,
        eos_token_ids=eos_ids,
        suppressed_token_ids=(*(config.suppress_tokens or ()), *suppressed),
    )


def sampling_policy(
    options: VideoOptions, processor: Any, *, frames_per_slot: int, multiple_of: int = 1
) -> SamplingPolicy:
    """A family's default rate and bounds with the request's over them; fps and max_frames together are both bounds."""
    max_frames = processor.max_frames if options.max_frames is None else min(options.max_frames, processor.max_frames)
    if options.max_tokens is not None:
        if options.max_tokens < 1:
            raise InvalidMediaOptionError(
                f"max_tokens must be at least 1, got {options.max_tokens}", param="max_tokens"
            )
        max_frames = min(max_frames, options.max_tokens * frames_per_slot)  # a slot takes at least one token
    fps = processor.fps if options.fps is None and options.num_frames is None else options.fps
    return SamplingPolicy(
        fps=fps,
        num_frames=options.num_frames,
        # The family's lower bound is for a rate; a count that was asked for is a count.
        min_frames=1 if options.num_frames is not None else min(processor.min_frames, max_frames),
        max_frames=max_frames,
        multiple_of=multiple_of,
        start_s=options.start_s,
        end_s=options.end_s,
    )


def picture_bounds(options: VideoOptions, *, low: int, high: int) -> tuple[int, int]:
    """Bounds on one picture's pixels. The checkpoint's own upper bound is a ceiling: beyond it a few bytes could ask
    for gigabytes. What a request bounds from above is not raised again by the checkpoint's lower bound."""
    ceiling = high if options.max_pixels is None else min(options.max_pixels, high)
    floor = min(low, ceiling) if options.min_pixels is None else options.min_pixels
    if floor > ceiling:
        raise InvalidMediaOptionError(
            f"min_pixels ({floor}) must not be above max_pixels ({ceiling}, at most {high})", param="min_pixels"
        )
    return floor, ceiling


def slot_patches(
    item: MediaItem, slot_start: int, slot_stop: int, *, processor: Any, taps: CellTaps | None = None
) -> PatchBatch:
    """Slots [slot_start, slot_stop) of an item, each picture a segment; of a clip that is encoded in part, the patches
    that enter, with the keys that they see.

    processor: transformers' for that kind. taps: of all cells of those slots, where cells are pooled.
    """
    if item.encoder != "full":
        return _entering_patches(item, slot_start, slot_stop, processor=processor, taps=taps)
    grid = item.grid
    _, height, width = grid.patch_grid
    rows, cols = patch_places(height, width, grid.merge_size)
    pictures, count = (slot_stop - slot_start) * grid.pictures_per_slot, height * width
    return PatchBatch(
        pixel_values=_pixels(item, slot_start, slot_stop, processor, None),
        rows=np.tile(rows, pictures),
        cols=np.tile(cols, pictures),
        heights=np.full(pictures * count, height),
        widths=np.full(pictures * count, width),
        cu_seqlens=np.arange(pictures + 1) * count,
        taps=taps,
    )


def _entering_patches(
    item: MediaItem, slot_start: int, slot_stop: int, *, processor: Any, taps: CellTaps | None
) -> PatchBatch:
    grid, present = item.grid, item.entering.present
    _, height, width = grid.patch_grid
    places = patch_places(height, width, grid.merge_size)
    part = present[slot_start:slot_stop]
    chosen = np.flatnonzero(part)
    counts = part.sum(axis=1)
    if taps is not None:
        numbers = np.where(part, np.cumsum(part).reshape(part.shape) - 1, -1).reshape(-1)
        taps = taps.of(np.flatnonzero(item.selection.keep[slot_start:slot_stop])).renumbered(numbers)
    return PatchBatch(
        pixel_values=_pixels(item, slot_start, slot_stop, processor, chosen),
        rows=places[0][chosen % part.shape[1]],
        cols=places[1][chosen % part.shape[1]],
        heights=np.full(len(chosen), height),
        widths=np.full(len(chosen), width),
        cu_seqlens=np.cumsum([0, *counts[counts > 0]]),
        taps=taps,
        keys=_seen_keys(item, slot_start, slot_stop, places),
    )


def _seen_keys(
    item: MediaItem, slot_start: int, slot_stop: int, places: tuple[np.ndarray, np.ndarray]
) -> KeyRows | None:
    """None where patches see their own slot's alone."""
    if item.link is not None:
        return hand_over_keys(item.entering.present[0], places=places)
    if item.encoder != "reuse":
        return None
    return borrow_keys(item.entering.present, slot_start, slot_stop, places=places)


def _pixels(
    item: MediaItem, slot_start: int, slot_stop: int, processor: Any, chosen: np.ndarray | None
) -> torch.Tensor:
    return pixel_values(
        item.grid,
        slot_start,
        slot_stop,
        mean=processor.image_mean,
        std=processor.image_std,
        rescale=processor.rescale_factor,
        chosen=chosen,
    )
