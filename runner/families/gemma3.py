"""Gemma 3: pictures of one square size, pooled to few cells that see each other forwards and backwards; a clip is its
frames, each under its time. Owns what is particular to the family; the engine around it knows none of this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from attention.protocol import PlannedAttention
from runner.encoder_attention import encode_batch
from runner.entering import ALL_ENCODERS
from runner.errors import EngineStartError
from runner.families.base import DecoderShape, DenseSpan, GenerationDefaults, ItemText, Kind, VisualRows
from runner.families.common import CLIP_MARK, chat_with_marks, decoder_shape, generation_defaults, slot_patches
from runner.families.gemma_decoder import GemmaDecoder, gemma_layers
from runner.families.squares import (
    embed_words,
    frame_sampling,
    interpolation_of,
    plain_positions,
    refuse_sizes,
    stamp,
    whole_tower,
)
from runner.items import MediaItem
from runner.requests import ChatMessage, VideoOptions
from vision.frames import VideoFrames
from vision.patches import PatchGrid
from vision.request import DecodeRequest
from vision.resize import FixedSize
from vision.sampling import SamplingPolicy
from vision.towers.packed import EncodedCells, PatchBatch
from vision.towers.siglip import reading_order

# The models know no clips, so there is no rate of theirs: one frame a second, and as many as fit a usual context.
FPS, MOST_FRAMES = 1.0, 32


class Gemma3:
    """One loaded Gemma 3 checkpoint. model: transformers' Gemma3ForConditionalGeneration."""

    name = "gemma3"
    modalities: tuple[Kind, ...] = ("image", "video")
    encoders = ALL_ENCODERS

    def __init__(self, model: Any, processor: Any) -> None:
        config = model.config
        _check(config, processor)
        self._model = model
        self._text = model.model.language_model
        self._decoder = GemmaDecoder(self._text)
        tower = model.model.vision_tower
        self._projector = model.model.multi_modal_projector
        self.tower = whole_tower(getattr(tower, "vision_model", tower), reading_order, self._project)
        self._processor = processor
        self._side: int = config.vision_config.image_size
        self._patch: int = config.vision_config.patch_size
        self._merge: int = self._projector.kernel_size
        self._image_token_id: int = config.image_token_id
        self.shape: DecoderShape = replace(
            decoder_shape(config.text_config, self._text, rope_axes=1, num_planes=0),
            layers=gemma_layers(config.text_config),
            prefix="run",
        )
        self.defaults: GenerationDefaults = generation_defaults(model, suppressed=(self._image_token_id,))

    # -------------------------------------------------------------------------------------------------- pictures

    def decode_request(self, kind: Kind, options: VideoOptions, siblings: int) -> DecodeRequest:  # noqa: ARG002
        refuse_sizes(options, self._side)
        per_frame = (self._side // self._patch // self._merge) ** 2
        sampling = frame_sampling(options, cells_per_frame=per_frame, most=MOST_FRAMES, fps=FPS, spread="ends")
        return DecodeRequest(
            kind=kind,
            resize=FixedSize(height=self._side, width=self._side),
            interpolation=interpolation_of(self._processor.image_processor),
            sampling=sampling if kind == "video" else SamplingPolicy(),
        )

    def patch_grid(self, frames: VideoFrames) -> PatchGrid:
        return PatchGrid.from_frames(frames, patch_size=self._patch, merge_size=self._merge, temporal_patch_size=1)

    # ---------------------------------------------------------------------------------------------------- prompt

    def render(self, chat: Sequence[ChatMessage]) -> str:
        """The template knows images only; a clip's place is held by a mark that it takes for text."""
        text: str = self._processor.apply_chat_template(
            chat_with_marks(chat), add_generation_prompt=True, tokenize=False
        )
        return text

    def placeholder_pattern(self, kind: Kind) -> str:
        token: str = self._processor.boi_token
        return token if kind == "image" else CLIP_MARK

    def placeholder_id(self, kind: Kind) -> int:  # noqa: ARG002 (a clip's frames are images)
        return self._image_token_id

    def write_item(self, item: MediaItem) -> ItemText:
        """Worked example, a clip of two frames a second apart: "Frame at 00:00:<picture>Frame at 00:01:<picture>"."""
        per_slot = item.grid.cells_per_slot
        runs = tuple(np.arange(t * per_slot, (t + 1) * per_slot) for t in range(item.grid.slots))
        tokenizer = self._processor.tokenizer
        picture = f"\n\n{tokenizer.boi_token}{tokenizer.image_token}{tokenizer.eoi_token}\n\n"
        if item.kind == "image":
            return ItemText(text=picture, runs=runs)
        return ItemText(text="".join(f"Frame at {stamp(time)}:{picture}" for time in item.grid.times_s), runs=runs)

    def positions(self, length: int, spans: Sequence[DenseSpan], items: Sequence[MediaItem]) -> np.ndarray:  # noqa: ARG002
        return plain_positions(length)

    # ----------------------------------------------------------------------------------------------------- model

    def patch_batch(self, item: MediaItem, slot_start: int, slot_stop: int) -> PatchBatch:
        return slot_patches(item, slot_start, slot_stop, processor=self._processor.image_processor)

    def encode(self, batch: PatchBatch) -> EncodedCells:
        return encode_batch(self.tower, batch)

    def _project(self, hidden: torch.Tensor) -> torch.Tensor:
        pooled = hidden.view(-1, self._merge**2, hidden.shape[-1]).mean(1)  # (N, D_vision)
        normed = self._projector.mm_soft_emb_norm(pooled)
        projected: torch.Tensor = normed @ self._projector.mm_input_projection_weight
        return projected

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return embed_words(self._text.embed_tokens, token_ids, self._image_token_id)

    def forward(
        self,
        embeds: torch.Tensor,
        positions: torch.Tensor,
        visual: VisualRows | None,
        planned: PlannedAttention,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        assert visual is None or not visual.planes
        return self._decoder.forward(embeds, positions, planned, wanted)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._model.lm_head(hidden).float()
        return logits


def _check(config: Any, processor: Any) -> None:
    """Refuse at start what this adapter does not compute."""
    vision = config.vision_config
    side = vision.image_size // vision.patch_size
    for name, is_served in (
        (f"a vision tower {vision.model_type!r}", vision.model_type == "siglip_vision_model"),
        ("pan and scan", not processor.image_processor.do_pan_and_scan),
        (f"{config.mm_tokens_per_image} tokens a picture", side % round(config.mm_tokens_per_image**0.5) == 0),
        ("text that is read backwards", not config.text_config.use_bidirectional_attention),
    ):
        if not is_served:
            raise EngineStartError(f"a Gemma 3 checkpoint with {name} is not served")
