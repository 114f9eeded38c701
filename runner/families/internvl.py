"""InternVL 3 in transformers' layout: pictures of one square size whose patches are shuffled into cells; an image is
cut into tiles, a clip is its numbered frames. Owns what is particular to the family; the engine around it knows none of
this."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from attention.protocol import PlannedAttention
from runner.encoder_attention import encode_batch
from runner.errors import EngineStartError
from runner.families.base import DenseSpan, GenerationDefaults, ItemText, Kind, VisualRows
from runner.families.common import chat_as_dicts, decoder_shape, generation_defaults, slot_patches
from runner.families.decoder import Decoder
from runner.families.squares import frame_sampling, interpolation_of, plain_positions, refuse_sizes
from runner.items import MediaItem
from runner.requests import ChatMessage, VideoOptions
from vision.aspect_tiles import AspectTiles
from vision.frames import VideoFrames
from vision.patches import PatchGrid
from vision.request import DecodeRequest
from vision.resize import FixedSize
from vision.towers.internvl import InternVLTower
from vision.towers.packed import EncodedCells, PatchBatch
from vision.towers.siglip import shuffle_pixels

# Frames of a clip where a checkpoint states no number: the models were trained on 8 to 32.
TRAINED_FRAMES = 16
DECODERS = ("llama", "qwen2", "qwen3")


class InternVL:
    """One loaded InternVL checkpoint. model: transformers' InternVLForConditionalGeneration."""

    name = "internvl"
    modalities: tuple[Kind, ...] = ("image", "video")

    def __init__(self, model: Any, processor: Any) -> None:
        config = model.config
        _check(config)
        self._model = model
        self._text = model.model.language_model
        self._decoder = Decoder(self._text)
        self._projector = model.model.multi_modal_projector
        self.tower = InternVLTower(model.model.vision_tower, self._project)
        self._processor = processor
        self._side: int = config.vision_config.image_size[0]
        self._patch: int = config.vision_config.patch_size[0]
        self._merge = round(1 / config.downsample_ratio)
        self._image_token_id: int = config.image_token_id
        self.shape = decoder_shape(config.text_config, self._text, rope_axes=1, num_planes=0)
        self.defaults: GenerationDefaults = generation_defaults(model, suppressed=(self._image_token_id,))

    # -------------------------------------------------------------------------------------------------- pictures

    def decode_request(self, kind: Kind, options: VideoOptions, siblings: int) -> DecodeRequest:  # noqa: ARG002
        refuse_sizes(options, self._side)
        processor = getattr(self._processor, f"{kind}_processor")
        resize, interpolation = FixedSize(height=self._side, width=self._side), interpolation_of(processor)
        if kind == "image":
            tiling = AspectTiles(side=self._side, min_tiles=processor.min_patches, max_tiles=processor.max_patches)
            return DecodeRequest(kind=kind, resize=resize, interpolation=interpolation, tiling=tiling)
        sampling = frame_sampling(
            options,
            cells_per_frame=(self._side // self._patch // self._merge) ** 2,
            most=processor.num_frames or TRAINED_FRAMES,
            fps=processor.fps,
            spread="middles",
        )
        return DecodeRequest(kind=kind, resize=resize, interpolation=interpolation, sampling=sampling)

    def patch_grid(self, frames: VideoFrames) -> PatchGrid:
        return PatchGrid.from_frames(frames, patch_size=self._patch, merge_size=self._merge, temporal_patch_size=1)

    # ---------------------------------------------------------------------------------------------------- prompt

    def render(self, chat: Sequence[ChatMessage]) -> str:
        text: str = self._processor.apply_chat_template(chat_as_dicts(chat), add_generation_prompt=True, tokenize=False)
        return text

    def placeholder_pattern(self, kind: Kind) -> str:
        token: str = getattr(self._processor, f"{kind}_token")
        return token

    def placeholder_id(self, kind: Kind) -> int:  # noqa: ARG002 (a clip's frames are images)
        return self._image_token_id

    def write_item(self, item: MediaItem) -> ItemText:
        """An image's tiles stand as one, a clip's frames each under its number."""
        slots, per_slot = item.grid.slots, item.grid.cells_per_slot
        p = self._processor
        picture = p.start_image_token + p.image_token + p.end_image_token
        if item.kind == "image":
            return ItemText(text=picture, runs=(np.arange(slots * per_slot),))
        runs = tuple(np.arange(t * per_slot, (t + 1) * per_slot) for t in range(slots))
        return ItemText(text="\n".join(f"Frame{t + 1}: {picture}" for t in range(slots)), runs=runs)

    def positions(self, length: int, spans: Sequence[DenseSpan], items: Sequence[MediaItem]) -> np.ndarray:  # noqa: ARG002
        return plain_positions(length)

    # ----------------------------------------------------------------------------------------------------- model

    def patch_batch(self, item: MediaItem, slot_start: int, slot_stop: int) -> PatchBatch:
        processor = getattr(self._processor, f"{item.kind}_processor")
        return slot_patches(item, slot_start, slot_stop, processor=processor)

    def encode(self, batch: PatchBatch) -> EncodedCells:
        return encode_batch(self.tower, batch)

    def _project(self, hidden: torch.Tensor) -> torch.Tensor:
        cells: torch.Tensor = self._projector(shuffle_pixels(hidden, self._merge))
        return cells

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


def _check(config: Any) -> None:
    """Refuse at start what this adapter does not compute."""
    vision = config.vision_config
    for name, found, served in (
        ("text decoder", config.text_config.model_type, DECODERS),
        ("vision tower", vision.model_type, ("internvl_vision",)),
        ("vision_feature_layer", config.vision_feature_layer, (-1,)),
        ("vision_feature_select_strategy", config.vision_feature_select_strategy, ("default",)),
        ("image_size", tuple(vision.image_size), ((vision.image_size[0],) * 2,)),
    ):
        if found not in served:
            words = " or ".join(repr(value) for value in served)
            raise EngineStartError(f"an InternVL checkpoint with {name} {found!r} is not served; {words} is")
