"""LLaVA-OneVision: a clip's frames are pooled to a quarter and closed by a newline row; a lone image is cut into tiles
and read row by row, each row closed by a newline. Owns what is particular to the family; the engine around it knows
none of this."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from attention.protocol import PlannedAttention
from runner.encoder_attention import encode_batch
from runner.entering import ALL_ENCODERS
from runner.errors import EngineStartError
from runner.families.base import DenseSpan, GenerationDefaults, ItemText, Kind, VisualRows
from runner.families.common import chat_as_dicts, decoder_shape, generation_defaults, slot_patches
from runner.families.decoder import Decoder
from runner.families.llava_cells import LlavaCells
from runner.families.squares import (
    crop_to_patches,
    interpolation_of,
    most_frames,
    plain_positions,
    refuse_sizes,
)
from runner.items import MediaItem
from runner.requests import ChatMessage, VideoOptions
from vision.frames import VideoFrames
from vision.patches import PatchGrid
from vision.request import DecodeRequest
from vision.resize import FixedSize
from vision.sampling import SamplingPolicy
from vision.tiling import AnyResolution, PadToSquare
from vision.towers.packed import EncodedCells, PatchBatch
from vision.towers.siglip import SiglipTower, reading_order

# Frames of a clip where a checkpoint states neither a number nor a rate; released ones do not, and saw up to this many.
TRAINED_FRAMES = 32
ANY_RESOLUTION = "anyres_max_"


class LlavaOneVision:
    """One loaded LLaVA-OneVision checkpoint. model: transformers' LlavaOnevisionForConditionalGeneration."""

    name = "llava_onevision"
    modalities: tuple[Kind, ...] = ("image", "video")
    encoders = ALL_ENCODERS

    def __init__(self, model: Any, processor: Any) -> None:
        config = model.config
        _check(config)
        self._model = model
        self._text = model.model.language_model
        self._decoder = Decoder(self._text)
        tower = getattr(model.model.vision_tower, "vision_model", model.model.vision_tower)
        self._newline = model.model.image_newline
        self._processor = processor
        self._patch: int = config.vision_config.patch_size
        self._pixels: int = config.vision_config.image_size
        side = self._pixels // self._patch
        canvases = tuple((height, width) for height, width in processor.image_processor.image_grid_pinpoints)
        self._cells = LlavaCells(
            side=side,
            tiling=AnyResolution(side=self._pixels, canvases=canvases),
            most_places=int(config.vision_aspect_ratio.removeprefix(ANY_RESOLUTION)) * side**2,
        )
        after = _layers(config.vision_feature_layer, len(tower.encoder.layers))
        self.tower = SiglipTower(tower, reading_order, model.model.multi_modal_projector, after=after)
        self._pad_ids: dict[Kind, int] = {"image": config.image_token_id, "video": config.video_token_id}
        self.shape = decoder_shape(config.text_config, self._text, rope_axes=1, num_planes=0)
        self.defaults: GenerationDefaults = generation_defaults(model, suppressed=tuple(self._pad_ids.values()))

    # -------------------------------------------------------------------------------------------------- pictures

    def decode_request(self, kind: Kind, options: VideoOptions, siblings: int) -> DecodeRequest:
        """A lone image is cut into tiles; of several, each becomes one square."""
        refuse_sizes(options, self._pixels)
        processor = getattr(self._processor, f"{kind}_processor")
        resize, interpolation = FixedSize(height=self._pixels, width=self._pixels), interpolation_of(processor)
        if kind == "video":
            sampling = self._sampling(options, processor)
            return DecodeRequest(kind=kind, resize=resize, interpolation=interpolation, sampling=sampling)
        red, green, blue = (int(value * 255) for value in processor.image_mean)
        tiling = self._cells.tiling if siblings == 1 else PadToSquare(side=self._pixels, fill=(red, green, blue))
        return DecodeRequest(kind=kind, resize=resize, interpolation=interpolation, tiling=tiling)

    def _sampling(self, options: VideoOptions, processor: Any) -> SamplingPolicy:
        """The request's rate or number of frames, else the checkpoint's, else as many as it was trained on."""
        default = processor.num_frames or TRAINED_FRAMES
        most = most_frames(options, cells_per_frame=self._cells.pooled_side**2, default=default)
        fps, number = options.fps, options.num_frames
        if fps is None and number is None:
            fps = processor.fps if processor.num_frames is None else None
            number = min(default, most) if fps is None else None
        return SamplingPolicy(
            fps=fps,
            num_frames=number,
            max_frames=most,
            spread="parts",
            start_s=options.start_s,
            end_s=options.end_s,
        )

    def patch_grid(self, frames: VideoFrames) -> PatchGrid:
        """A clip has a slot for each frame; an image is one slot, with all its tiles."""
        return PatchGrid(
            pixels=crop_to_patches(frames.pixels, self._patch),
            times_s=frames.times_s,
            temporal_patch_size=1,
            patch_size=self._patch,
            merge_size=1,
            pooled=self._cells.grid(frames),
            pictures_per_slot=1 if frames.kind == "video" else len(frames.pixels),
        )

    # ---------------------------------------------------------------------------------------------------- prompt

    def render(self, chat: Sequence[ChatMessage]) -> str:
        text: str = self._processor.apply_chat_template(chat_as_dicts(chat), add_generation_prompt=True, tokenize=False)
        return text

    def placeholder_pattern(self, kind: Kind) -> str:
        token: str = getattr(self._processor, f"{kind}_token")
        return token

    def placeholder_id(self, kind: Kind) -> int:
        return self._pad_ids[kind]

    def write_item(self, item: MediaItem) -> ItemText:
        """One placeholder; newlines are structural rows."""
        return ItemText(text=self.placeholder_pattern(item.kind), runs=(self._cells.run(item.frames),))

    def positions(self, length: int, spans: Sequence[DenseSpan], items: Sequence[MediaItem]) -> np.ndarray:  # noqa: ARG002
        return plain_positions(length)

    # ----------------------------------------------------------------------------------------------------- model

    def patch_batch(self, item: MediaItem, slot_start: int, slot_stop: int) -> PatchBatch:
        processor = getattr(self._processor, f"{item.kind}_processor")
        taps = self._cells.taps(item.frames, slot_stop - slot_start)
        return slot_patches(item, slot_start, slot_stop, processor=processor, taps=taps)

    def encode(self, batch: PatchBatch) -> EncodedCells:
        assert batch.taps is not None
        return encode_batch(self.tower, batch)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """A placeholder that no cell is written over is a newline."""
        embeds = self._text.embed_tokens(token_ids)
        is_newline = (token_ids == self._pad_ids["image"]) | (token_ids == self._pad_ids["video"])
        return torch.where(is_newline[:, None], self._newline.to(embeds), embeds)

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


def _layers(wanted: int | list[int], num_layers: int) -> tuple[int, ...]:
    """Feature layers as counts of layers run. Of 26 layers, -1 is after the 26th and -2 after the 25th."""
    numbers = [wanted] if isinstance(wanted, int) else wanted
    return tuple(number if number >= 0 else number + num_layers + 1 for number in numbers)


def _check(config: Any) -> None:
    """Refuse at start what this adapter does not compute."""
    for name, found, served in (
        ("vision tower", config.vision_config.model_type, "siglip_vision_model"),
        ("vision_feature_select_strategy", config.vision_feature_select_strategy, "full"),
        ("vision_aspect_ratio", config.vision_aspect_ratio[: len(ANY_RESOLUTION)], ANY_RESOLUTION),
    ):
        if found != served:
            raise EngineStartError(f"a LLaVA-OneVision checkpoint with {name} {found!r} is not served; {served!r} is")
