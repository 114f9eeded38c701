"""Qwen2.5-VL and Qwen2-VL: a clip is one run of placeholders; M-RoPE whose first axis counts a clip's seconds (Qwen2.5)
or slots (Qwen2). Owns what is particular to the two; the engine around them knows none of this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import torch

from attention.protocol import PlannedAttention
from runner.encoder_attention import encode_batch
from runner.entering import ALL_ENCODERS
from runner.families.base import DenseSpan, GenerationDefaults, ItemText, Kind, VisualRows
from runner.families.common import chat_as_dicts, generation_defaults, picture_bounds, sampling_policy, slot_patches
from runner.families.decoder import Decoder
from runner.families.fused import fuse_blocks
from runner.families.qwen import PADS, decoder_shape, image_request, mrope_positions, pad_ids
from runner.items import MediaItem
from runner.requests import ChatMessage, VideoOptions
from vision.frames import VideoFrames
from vision.patches import PatchGrid
from vision.request import DecodeRequest
from vision.resize import FrameSmartResize
from vision.towers.packed import EncodedCells, PatchBatch
from vision.towers.qwen2_5_vl import Qwen25VLTower

# Released checkpoints name no rate; they were trained, and their authors' tools sample, at this one.
TRAINED_FPS = 2.0
# A clip may fill this share of the context that its processor assumes (`max_video_tokens`).
CLIP_SHARE = 0.9


class Qwen25VL:
    """One loaded Qwen2.5-VL checkpoint. model: transformers' Qwen2_5_VLForConditionalGeneration."""

    name = "qwen2_5_vl"
    modalities: tuple[Kind, ...] = ("image", "video")
    encoders = ALL_ENCODERS

    def __init__(self, model: Any, processor: Any) -> None:
        self._model = model
        self._text = model.model.language_model
        self._decoder = Decoder(self._text)
        fuse_blocks(model.model.visual)
        self.tower = Qwen25VLTower(model.model.visual)
        self._processor = processor
        self._pad_ids = pad_ids(model.config)
        vision = model.config.vision_config
        self._vision = vision
        self._factor: int = vision.patch_size * vision.spatial_merge_size
        self.shape = decoder_shape(model, num_planes=0)
        self.defaults: GenerationDefaults = generation_defaults(model, suppressed=tuple(self._pad_ids.values()))

    # -------------------------------------------------------------------------------------------------- pictures

    def decode_request(self, kind: Kind, options: VideoOptions, siblings: int) -> DecodeRequest:  # noqa: ARG002
        if kind == "image":
            return image_request(self._processor.image_processor, options, factor=self._factor)
        video, temporal = self._processor.video_processor, self._vision.temporal_patch_size
        sampling = sampling_policy(
            _whole_slots(options, video, temporal), video, frames_per_slot=temporal, multiple_of=temporal
        )
        return DecodeRequest(kind="video", sampling=replace(sampling, spread="starts"), resize=self._resize(options))

    def _resize(self, options: VideoOptions) -> FrameSmartResize:
        """A frame's own bounds, and its share of what the clip may cost. What the request bounds is not raised again
        by the checkpoint's lower bound."""
        video, cell = self._processor.video_processor, self._factor**2
        min_pixels, max_pixels = picture_bounds(
            options, low=video.size["shortest_edge"], high=video.size["longest_edge"]
        )
        # transformers leaves the cap unset in released checkpoints, but they were trained with it.
        total = None if video.cap_pixels_per_frame is False else int(video.max_video_tokens * cell * CLIP_SHARE)
        if options.max_pixels is not None and options.min_pixels is None:
            min_pixels = min(min_pixels, max(1, int(max_pixels / 1.05)))
        if options.max_tokens is not None:
            total = min(total or options.max_tokens * cell, options.max_tokens * cell)
            if options.min_pixels is None:
                min_pixels = min(min_pixels, cell)
        return FrameSmartResize(
            factor=self._factor,
            temporal_factor=self._vision.temporal_patch_size,
            min_pixels=min_pixels,
            max_pixels=max_pixels,
            total_pixels=total,
        )

    def patch_grid(self, frames: VideoFrames) -> PatchGrid:
        vision = self._vision
        return PatchGrid.from_frames(
            frames,
            patch_size=vision.patch_size,
            merge_size=vision.spatial_merge_size,
            temporal_patch_size=vision.temporal_patch_size,
        )

    # ---------------------------------------------------------------------------------------------------- prompt

    def render(self, chat: Sequence[ChatMessage]) -> str:
        text: str = self._processor.apply_chat_template(chat_as_dicts(chat), add_generation_prompt=True, tokenize=False)
        return text

    def placeholder_pattern(self, kind: Kind) -> str:
        return PADS[kind].replace("|", r"\|")

    def placeholder_id(self, kind: Kind) -> int:
        return self._pad_ids[kind]

    def write_item(self, item: MediaItem) -> ItemText:
        """The template has already wrapped the placeholder: a clip of any length stands for one of them."""
        return ItemText(text=PADS[item.kind], runs=(np.arange(item.grid.slots * item.grid.cells_per_slot),))

    def positions(self, length: int, spans: Sequence[DenseSpan], items: Sequence[MediaItem]) -> np.ndarray:
        """Text counts on along all axes at once; a clip's cells stand at (tick, row, column), and the text after the
        clip continues at the larger side of its *picture*, even where its ticks have run further.

        Worked example, 1 text row, a clip of 2 slots x 1 x 2 cells with slots 1.5 s apart at 2 ticks a second, 1 text
        row: t 0 1 1 4 4 3, h 0 1 1 1 1 3, w 0 1 2 1 2 3. The first generated token stands at 5.
        """
        return mrope_positions(length, spans, items, slot_ticks=self.slot_ticks)

    def slot_ticks(self, item: MediaItem) -> np.ndarray:
        """(T,) int64: whole ticks from the first slot to each. They are cut only here, never per slot.

        Worked example, 2 ticks a second: slots 0.25 s apart (8 sampled frames a second) give 0, 0, 1, 1, 2.
        """
        slots = np.arange(item.grid.slots)
        if item.kind == "image":
            return slots
        apart_s = seconds_per_slot(item.frames, item.grid.temporal_patch_size)
        # In float32, as transformers multiplies: a product that is a whole number there is one here.
        ticks = slots.astype(np.float32) * (np.float32(self._vision.tokens_per_second) * np.float32(apart_s))
        return ticks.astype(np.int64)

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


class Qwen2VL(Qwen25VL):
    """One loaded Qwen2-VL checkpoint: no windows in the tower, and one tick a slot whatever its length."""

    name = "qwen2_vl"

    def slot_ticks(self, item: MediaItem) -> np.ndarray:
        return np.arange(item.grid.slots)


def seconds_per_slot(frames: VideoFrames, temporal_patch_size: int) -> float:
    """How far apart a clip's slots are.

    Frames stand at the starts of equal parts of the clip, rounded to whole pictures: where their times agree with that
    to one picture the parts' exact length counts, as in transformers' processor; else (the clip was cut, or its rate
    varies) the mean distance of the times.

    Worked example, 7 pictures at 2 a second of which 6 are taken: parts of 7/12 s, slots 7/6 s apart.
    """
    count, span = len(frames.times_s), frames.times_s[-1] - frames.times_s[0]
    if count < 2 or span <= 0 or not frames.source_fps:
        return float(temporal_patch_size)  # a single slot: nothing is apart from it
    fps = count / frames.num_frames * frames.source_fps
    if abs((count - 1) / fps - span) > 1 / frames.source_fps:
        fps = (count - 1) / span
    return temporal_patch_size / fps


def _whole_slots(options: VideoOptions, video: Any, temporal: int) -> VideoOptions:
    """The options with the trained rate where nobody names one, and num_frames at the nearest whole number of slots."""
    if options.num_frames is None:
        trained = options.fps is None and video.fps is None
        return msgspec.structs.replace(options, fps=TRAINED_FPS) if trained else options
    nearest = max(1, round(options.num_frames / temporal)) * temporal
    limit = video.max_frames if options.max_frames is None else options.max_frames
    fits = options.num_frames > 0 and nearest <= limit
    return msgspec.structs.replace(options, num_frames=nearest) if fits else options
