"""Qwen3-VL: a clip is written slot by slot with timestamps; interleaved M-RoPE; deepstack planes. Owns what is
particular to the family; the engine around it knows none of this."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from attention.protocol import PlannedAttention
from runner.encoder_attention import encode_batch
from runner.entering import ALL_ENCODERS
from runner.families.base import DenseSpan, GenerationDefaults, ItemText, Kind, VisualRows
from runner.families.common import chat_as_dicts, generation_defaults, picture_bounds, sampling_policy, slot_patches
from runner.families.decoder import Decoder
from runner.families.qwen import (
    END,
    PADS,
    START,
    decoder_shape,
    image_request,
    mrope_positions,
    pad_ids,
)
from runner.families.qwen3_vl_embedding import read_embedding_policy
from runner.items import MediaItem
from runner.requests import ChatMessage, VideoOptions
from vision.frames import VideoFrames
from vision.patches import PatchGrid
from vision.request import DecodeRequest
from vision.resize import VideoSmartResize
from vision.towers.packed import EncodedCells, PatchBatch
from vision.towers.qwen3_vl import Qwen3VLTower


class Qwen3VL:
    """One loaded Qwen3-VL checkpoint. model: transformers' Qwen3VLForConditionalGeneration."""

    name = "qwen3_vl"
    modalities: tuple[Kind, ...] = ("image", "video")
    encoders = ALL_ENCODERS

    def __init__(self, model: Any, processor: Any) -> None:
        self._model = model
        self._text = model.model.language_model
        self._decoder = Decoder(self._text)
        self.tower = Qwen3VLTower(model.model.visual)
        self._processor = processor
        self._pad_ids = pad_ids(model.config)
        vision = model.config.vision_config
        self._merge, self._temporal, self._patch = (
            vision.spatial_merge_size,
            vision.temporal_patch_size,
            vision.patch_size,
        )
        self.shape = decoder_shape(model, num_planes=len(vision.deepstack_visual_indexes))
        self.embedding = read_embedding_policy(model.name_or_path, cell=self._patch * self._merge)
        self.defaults: GenerationDefaults = generation_defaults(model, suppressed=tuple(self._pad_ids.values()))

    # -------------------------------------------------------------------------------------------------- pictures

    def decode_request(self, kind: Kind, options: VideoOptions, siblings: int) -> DecodeRequest:  # noqa: ARG002
        if kind == "image":
            return image_request(self._processor.image_processor, options, factor=self._patch * self._merge)
        video = self._processor.video_processor
        sampling = sampling_policy(options, video, frames_per_slot=self._temporal)
        return DecodeRequest(kind="video", sampling=sampling, resize=self._resize(options))

    def _resize(self, options: VideoOptions) -> VideoSmartResize:
        """The checkpoint bounds the whole clip and, as these models were trained, each frame; the request's bounds on
        pixels are on each frame, as they are for the other families."""
        video, cell = self._processor.video_processor, (self._patch * self._merge) ** 2
        min_pixels, total = video.size["shortest_edge"], video.size["longest_edge"]
        # transformers leaves the cap unset in released checkpoints.
        is_capped = video.cap_pixels_per_frame is not False
        high = min(video.max_video_tokens * cell, total) if is_capped else total
        low, high = picture_bounds(options, low=0, high=high)
        if options.min_pixels is not None:
            min_pixels = min(min_pixels, low)
        if options.max_pixels is not None:
            min_pixels = min(min_pixels, max(1, int(high / 1.05)))
        if options.max_tokens is not None:  # a small clip is not enlarged, a large one shares what it is given
            min_pixels, total = min(min_pixels, cell), min(total, options.max_tokens * cell * self._temporal)
        return VideoSmartResize(
            factor=self._patch * self._merge,
            temporal_factor=self._temporal,
            min_pixels=min_pixels,
            min_frame_pixels=low,
            max_pixels=total,
            cap_pixels_per_frame="on" if is_capped or options.max_pixels is not None else "off",
            max_video_tokens=high // cell,
        )

    def patch_grid(self, frames: VideoFrames) -> PatchGrid:
        return PatchGrid.from_frames(
            frames, patch_size=self._patch, merge_size=self._merge, temporal_patch_size=self._temporal
        )

    # ---------------------------------------------------------------------------------------------------- prompt

    def render(self, chat: Sequence[ChatMessage]) -> str:
        text: str = self._processor.apply_chat_template(chat_as_dicts(chat), add_generation_prompt=True, tokenize=False)
        return text

    def placeholder_pattern(self, kind: Kind) -> str:
        pad = PADS[kind].replace("|", r"\|")
        if kind == "image":
            return pad
        # The official template wraps a clip once more; the models were trained with the slots' own wrapping alone.
        start, end = START.replace("|", r"\|"), END.replace("|", r"\|")
        return f"{start}{pad}{end}|{pad}"

    def placeholder_id(self, kind: Kind) -> int:
        return self._pad_ids[kind]

    def write_item(self, item: MediaItem) -> ItemText:
        per_slot = item.grid.cells_per_slot
        runs = tuple(np.arange(t * per_slot, (t + 1) * per_slot) for t in range(item.grid.slots))
        if item.kind == "image":
            return ItemText(text=PADS["image"], runs=runs)
        texts = [f"<{time:.1f} seconds>{START}{PADS['video']}{END}" for time in slot_times(item.grid)]
        return ItemText(text="".join(texts), runs=runs)

    def positions(self, length: int, spans: Sequence[DenseSpan], items: Sequence[MediaItem]) -> np.ndarray:
        """Text counts on along all axes at once; a slot's cells stand at (t, t + row, t + column), and the text after
        it continues at the larger side.

        Worked example, 1 text row, a slot of 2 x 3 cells, 1 text row: t 0 1 1 1 1 1 1 4, h 0 1 1 1 2 2 2 4,
        w 0 1 2 3 1 2 3 4.
        """
        return mrope_positions(length, spans, items, slot_ticks=lambda item: np.zeros(item.grid.slots, np.int64))

    # ----------------------------------------------------------------------------------------------------- model

    def patch_batch(self, item: MediaItem, slot_start: int, slot_stop: int) -> PatchBatch:
        processor = getattr(self._processor, f"{item.kind}_processor")
        return slot_patches(item, slot_start, slot_stop, processor=processor)

    def encode(self, batch: PatchBatch) -> EncodedCells:
        return encode_batch(self.tower, batch)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        embeds: torch.Tensor = self._text.embed_tokens(token_ids)
        return embeds

    def forward(
        self,
        embeds: torch.Tensor,
        positions: torch.Tensor,
        visual: VisualRows | None,
        planned: PlannedAttention,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return self._decoder.forward(embeds, positions, visual, planned, wanted)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._model.lm_head(hidden).float()
        return logits


def slot_times(grid: PatchGrid) -> list[float]:
    """(T,) seconds: the mean of the first and last frame's time in each slot.

    Worked example: frames at 0, 0.5, 1.0 in slots of two (the last frame repeated): 0.25, 1.0.
    """
    size, times = grid.temporal_patch_size, grid.times_s
    return [(times[i] + times[i + size - 1]) / 2 for i in range(0, len(times), size)]
