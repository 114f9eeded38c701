"""SmolVLM2: a clip is a series of pictures, each under its time; an image is cut into tiles and a whole view, each
named in the text. Owns what is particular to the family; the engine around it knows none of this."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from transformers.models.smolvlm import processing_smolvlm
from transformers.models.smolvlm.processing_smolvlm import (
    DEFAULT_MEDIA_OUTTRO,
    DEFAULT_VIDEO_INTRO,
    FRAME_TIMESTAMP_MESSAGE,
)

from attention.protocol import PlannedAttention
from runner.encoder_attention import encode_batch
from runner.entering import ALL_ENCODERS
from runner.families.base import DenseSpan, GenerationDefaults, ItemText, Kind, VisualRows
from runner.families.common import chat_as_dicts, decoder_shape, generation_defaults, slot_patches
from runner.families.decoder import Decoder
from runner.families.number_words import number_words
from runner.families.squares import (
    crop_to_patches,
    interpolation_of,
    most_frames,
    plain_positions,
    refuse_sizes,
    whole_tower,
)
from runner.items import MediaItem
from runner.requests import ChatMessage, VideoOptions
from vision.frames import VideoFrames
from vision.patches import PatchGrid
from vision.request import DecodeRequest
from vision.resize import FixedSize
from vision.sampling import GRID_TOLERANCE_S, SamplingPolicy
from vision.tiling import ResizeTwice, SquareTiles
from vision.towers.packed import EncodedCells, PatchBatch
from vision.towers.siglip import shuffle_pixels, stretched_order

# The processor does not load without the package num2words (LGPL), which it needs to spell one number. We spell it
# ourselves, so whoever has no such package is served all the same.
if processing_smolvlm.num2words is None:
    processing_smolvlm.num2words = number_words

# The processor's own limit on a picture's longer side, its rule for the ends of long clips, and its rate and bound
# where a checkpoint states none.
MAX_EDGE = 4096
SKIPPED_S = 1.0
TRAINED_FPS, TRAINED_FRAMES = 1.0, 64


class SmolVLM:
    """One loaded SmolVLM2 checkpoint. model: transformers' SmolVLMForConditionalGeneration."""

    name = "smolvlm"
    modalities: tuple[Kind, ...] = ("image", "video")
    encoders = ALL_ENCODERS

    def __init__(self, model: Any, processor: Any) -> None:
        self._model = model
        self._text = model.model.text_model
        self._decoder = Decoder(self._text)
        self._connector = model.model.connector
        self.tower = whole_tower(model.model.vision_model, stretched_order, self._project)
        self._processor = processor
        self._patch: int = model.config.vision_config.patch_size
        self._merge: int = model.config.scale_factor
        self._image_token_id: int = model.config.image_token_id
        self.shape = decoder_shape(model.config.text_config, self._text, rope_axes=1, num_planes=0)
        self.defaults: GenerationDefaults = generation_defaults(model, suppressed=(self._image_token_id,))

    # -------------------------------------------------------------------------------------------------- pictures

    def decode_request(self, kind: Kind, options: VideoOptions, siblings: int) -> DecodeRequest:  # noqa: ARG002
        processor = getattr(self._processor, f"{kind}_processor")
        edges = {"side": processor.max_image_size["longest_edge"], "longest_edge": _longest_edge(processor)}
        refuse_sizes(options, edges["side"])
        splits = kind == "image" and processor.do_image_splitting
        return DecodeRequest(
            kind=kind,
            resize=FixedSize(height=edges["side"], width=edges["side"]),
            tiling=SquareTiles(**edges) if splits else ResizeTwice(**edges),
            interpolation=interpolation_of(processor),
            sampling=self._sampling(options, processor) if kind == "video" else SamplingPolicy(),
        )

    def _sampling(self, options: VideoOptions, processor: Any) -> SamplingPolicy:
        """The processor's rule: so many frames a second up to a number; clips much longer than that lose their ends,
        unless the request says itself which part it wants."""
        per_frame = (processor.max_image_size["longest_edge"] // self._patch // self._merge) ** 2
        most = most_frames(options, cells_per_frame=per_frame, default=processor.num_frames or TRAINED_FRAMES)
        fps = (processor.fps or TRAINED_FPS) if options.fps is None else options.fps
        return SamplingPolicy(
            fps=None if options.num_frames is not None and options.fps is None else fps,
            num_frames=options.num_frames,
            max_frames=most,
            spread="ends_down",
            count_rounding="nearest",
            trim_s=SKIPPED_S if options.start_s is None and options.end_s is None else 0.0,
            trim_above_s=most * fps,
            start_s=options.start_s,
            end_s=options.end_s,
        )

    def patch_grid(self, frames: VideoFrames) -> PatchGrid:
        return PatchGrid(
            pixels=crop_to_patches(frames.pixels, self._patch),
            times_s=frames.times_s,
            temporal_patch_size=1,
            patch_size=self._patch,
            merge_size=self._merge,
        )

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
        per_slot = item.grid.cells_per_slot
        runs = tuple(np.arange(t * per_slot, (t + 1) * per_slot) for t in range(item.grid.slots))
        return ItemText(text=self._clip_text(item) if item.kind == "video" else self._image_text(item), runs=runs)

    def _clip_text(self, item: MediaItem) -> str:
        """Each clip states its own number of frames, also beside a longer one."""
        frames = item.frames
        seconds = int(frames.duration_s + GRID_TOLERANCE_S)
        text: str = DEFAULT_VIDEO_INTRO.format(
            frame_count=number_words(len(frames.times_s)), video_duration=timedelta(seconds=seconds)
        )
        stamps = (f"{int(time // 60):02d}:{int(time % 60):02d}" for time in frames.times_s)
        pictures = (FRAME_TIMESTAMP_MESSAGE.format(timestamp=stamp) + self._picture_text() for stamp in stamps)
        text += "".join(pictures) + DEFAULT_MEDIA_OUTTRO
        return text

    def _image_text(self, item: MediaItem) -> str:
        """Worked example, 1 x 2 tiles: "<fake><row_1_col_1><image><fake><row_1_col_2><image>\\n\\n<fake><global><image>
        <fake>"; an image that is not cut is its last line alone."""
        if item.grid.slots == 1:
            return self._picture_text()
        rows, columns = self._layout(item)
        fake, image = self._processor.fake_image_token, self._processor.image_token
        tiles = [[f"{fake}<row_{r + 1}_col_{c + 1}>{image}" for c in range(columns)] for r in range(rows)]
        return "".join("".join(row) + "\n" for row in tiles) + "\n" + self._picture_text()

    def _layout(self, item: MediaItem) -> tuple[int, int]:
        tiling = self.decode_request("image", VideoOptions(), 1).tiling
        assert isinstance(tiling, SquareTiles)
        return tiling.layout(item.frames.source_size)

    def _picture_text(self) -> str:
        p = self._processor
        text: str = p.fake_image_token + p.global_image_token + p.image_token + p.fake_image_token
        return text

    def positions(self, length: int, spans: Sequence[DenseSpan], items: Sequence[MediaItem]) -> np.ndarray:  # noqa: ARG002
        return plain_positions(length)

    # ----------------------------------------------------------------------------------------------------- model

    def patch_batch(self, item: MediaItem, slot_start: int, slot_stop: int) -> PatchBatch:
        processor = getattr(self._processor, f"{item.kind}_processor")
        return slot_patches(item, slot_start, slot_stop, processor=processor)

    def encode(self, batch: PatchBatch) -> EncodedCells:
        return encode_batch(self.tower, batch)

    def _project(self, hidden: torch.Tensor) -> torch.Tensor:
        projected: torch.Tensor = self._connector.modality_projection(shuffle_pixels(hidden, self._merge))
        return projected

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


def _longest_edge(processor: Any) -> int:
    return min(int(processor.size["longest_edge"]), MAX_EDGE)
