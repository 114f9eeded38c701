"""PaliGemma and PaliGemma 2: pictures of one square size in front of a text, all of which see each other forwards and
backwards; a clip is its frames. Owns what is particular to the family; the engine around it knows none of this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from attention.protocol import PlannedAttention
from runner.encoder_attention import encode_batch
from runner.entering import ALL_ENCODERS
from runner.errors import EngineStartError, RequestError
from runner.families.base import DecoderShape, DenseSpan, GenerationDefaults, ItemText, Kind, VisualRows
from runner.families.common import CLIP_MARK, decoder_shape, generation_defaults, slot_patches
from runner.families.gemma_decoder import GemmaDecoder, gemma_layers
from runner.families.squares import (
    crop_to_patches,
    embed_words,
    frame_sampling,
    interpolation_of,
    plain_positions,
    refuse_sizes,
    whole_tower,
)
from runner.items import MediaItem
from runner.requests import ChatMessage, TextPart, VideoOptions
from vision.frames import VideoFrames
from vision.patches import PatchGrid
from vision.request import DecodeRequest
from vision.resize import FixedSize
from vision.sampling import SamplingPolicy
from vision.towers.packed import EncodedCells, PatchBatch
from vision.towers.siglip import reading_order

# Clips were seen as so many frames, evenly spread, without their times.
TRAINED_FRAMES = 16


class PaliGemma:
    """One loaded PaliGemma checkpoint. model: transformers' PaliGemmaForConditionalGeneration."""

    name = "paligemma"
    modalities: tuple[Kind, ...] = ("image", "video")
    encoders = ALL_ENCODERS

    def __init__(self, model: Any, processor: Any) -> None:
        config = model.config
        if config.vision_config.model_type != "siglip_vision_model":
            raise EngineStartError(
                f"a PaliGemma checkpoint with a vision tower {config.vision_config.model_type!r} is not served"
            )
        self._model = model
        self._text = model.model.language_model
        self._decoder = GemmaDecoder(self._text)
        tower = model.model.vision_tower
        projector = model.model.multi_modal_projector
        self.tower = whole_tower(getattr(tower, "vision_model", tower), reading_order, projector)
        self._processor = processor
        self._side: int = config.vision_config.image_size
        self._patch: int = config.vision_config.patch_size
        self._image_token_id: int = config.image_token_id
        self._softcap: float | None = getattr(config.text_config, "final_logit_softcapping", None)
        self.shape: DecoderShape = replace(
            decoder_shape(config.text_config, self._text, rope_axes=1, num_planes=0),
            layers=gemma_layers(config.text_config),
            prefix="prompt",
        )
        self.defaults: GenerationDefaults = generation_defaults(model, suppressed=(self._image_token_id,))

    # -------------------------------------------------------------------------------------------------- pictures

    def decode_request(self, kind: Kind, options: VideoOptions, siblings: int) -> DecodeRequest:  # noqa: ARG002
        refuse_sizes(options, self._side)
        per_frame = (self._side // self._patch) ** 2
        sampling = frame_sampling(options, cells_per_frame=per_frame, most=TRAINED_FRAMES, fps=None, spread="ends")
        return DecodeRequest(
            kind=kind,
            resize=FixedSize(height=self._side, width=self._side),
            interpolation=interpolation_of(self._processor.image_processor),
            sampling=sampling if kind == "video" else SamplingPolicy(),
        )

    def patch_grid(self, frames: VideoFrames) -> PatchGrid:
        return PatchGrid(
            pixels=crop_to_patches(frames.pixels, self._patch),
            times_s=frames.times_s,
            temporal_patch_size=1,
            patch_size=self._patch,
            merge_size=1,
        )

    # ---------------------------------------------------------------------------------------------------- prompt

    def render(self, chat: Sequence[ChatMessage]) -> str:
        """There is no chat template: the parts as they stand, the mark of beginning after the last picture, a newline
        at the end. Raises RequestError for more than one turn."""
        if [message.role for message in chat] != ["user"]:
            raise RequestError(
                "invalid",
                "this model answers one message of role user, without history or system text",
                param="messages",
            )
        marks: dict[str, str] = {"image": self._processor.image_token, "video": CLIP_MARK}
        texts = [part.text if isinstance(part, TextPart) else marks[part.kind] for part in chat[0].parts]
        is_text = [isinstance(part, TextPart) for part in chat[0].parts]
        stop = max((index + 1 for index, found in enumerate(is_text) if not found), default=0)
        return "".join((*texts[:stop], self._processor.tokenizer.bos_token, *texts[stop:], "\n"))

    def placeholder_pattern(self, kind: Kind) -> str:
        token: str = self._processor.image_token
        return token if kind == "image" else CLIP_MARK

    def placeholder_id(self, kind: Kind) -> int:  # noqa: ARG002 (a clip's frames are images)
        return self._image_token_id

    def write_item(self, item: MediaItem) -> ItemText:
        per_slot, slots = item.grid.cells_per_slot, item.grid.slots
        runs = tuple(np.arange(t * per_slot, (t + 1) * per_slot) for t in range(slots))
        return ItemText(text=self._processor.image_token * slots, runs=runs)

    def positions(self, length: int, spans: Sequence[DenseSpan], items: Sequence[MediaItem]) -> np.ndarray:  # noqa: ARG002
        """(1, length): counted from 1."""
        return plain_positions(length) + 1

    # ----------------------------------------------------------------------------------------------------- model

    def patch_batch(self, item: MediaItem, slot_start: int, slot_stop: int) -> PatchBatch:
        return slot_patches(item, slot_start, slot_stop, processor=self._processor.image_processor)

    def encode(self, batch: PatchBatch) -> EncodedCells:
        return encode_batch(self.tower, batch)

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
        logits: torch.Tensor = self._model.lm_head(hidden)
        if self._softcap is not None:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return logits.float()
