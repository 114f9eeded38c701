"""Any of transformers' models whose pictures are squares of one size, written as so many tokens, before a decoder with
plain rotary positions: run as transformers runs it, with paged attention. A clip is a series of pictures. Owns nothing
particular to a family; what it takes for granted is tried out when it is built (generic_probe), and a model that does
otherwise is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from attention.protocol import PlannedAttention
from runner.errors import EngineStartError
from runner.families.base import DecoderShape, DenseSpan, GenerationDefaults, ItemText, Kind, VisualRows
from runner.families.common import CLIP_MARK, chat_with_marks, generation_defaults, layers_of, slot_patches
from runner.families.generic_traits import refusal_of
from runner.families.squares import embed_words, frame_sampling, interpolation_of, plain_positions, refuse_sizes
from runner.items import MediaItem
from runner.requests import ChatMessage, VideoOptions
from vision.aspect_tiles import ShortestEdgeCrop
from vision.frames import VideoFrames
from vision.patches import PatchGrid
from vision.request import DecodeRequest
from vision.resize import FixedSize
from vision.sampling import SamplingPolicy
from vision.towers.packed import EncodedCells, PatchBatch

# Such models were mostly trained on single pictures: a clip is few of them, evenly spread.
MOST_FRAMES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureText:
    """How one picture is written: `text` with one placeholder for each of `runs`, which are lengths in cells."""

    text: str
    runs: tuple[int, ...]

    @classmethod
    def of(cls, written: str, token: str) -> PictureText:
        """Worked example, "<s>TTT|TTT<e>" with token "T": text "<s>T|T<e>", runs (3, 3)."""
        repeated = re.compile(f"(?:{re.escape(token)})+")
        runs = tuple(len(match.group()) // len(token) for match in repeated.finditer(written))
        return cls(text=repeated.sub(lambda _: token, written), runs=runs)


class GenericVLM:
    """One loaded checkpoint of a family that has no adapter of its own."""

    modalities: tuple[Kind, ...] = ("image", "video")

    def __init__(self, model: Any, processor: Any) -> None:
        config = model.config
        reason = refusal_of(config)
        if reason is not None:
            raise EngineStartError(f"a checkpoint of type {config.model_type!r} cannot be served: {reason}")
        self.name: str = config.model_type
        self._model, self._processor = model, processor
        self._text = model.get_decoder()
        self._image_token_id: int = config.image_token_id
        self._images = processor.image_processor
        self._side = _side_of(self._images)
        self._patch = _patch_of(config.vision_config, self._side)
        self.picture = self._write_picture()
        self._grid = _grid_of(self.picture.runs)
        self.shape = _shape_of(config, self._text, self._text.get_input_embeddings().weight.shape[1])
        self.defaults: GenerationDefaults = generation_defaults(model, suppressed=(self._image_token_id,))

    def _write_picture(self) -> PictureText:
        """As the processor writes it; where that is its own secret, as many placeholders as the encoder gives cells."""
        token: str = self._processor.image_token
        blank = torch.zeros(3, self._side, self._side, dtype=torch.uint8)
        out = self._images(blank, return_tensors="pt")
        try:
            written: str = self._processor.replace_image_token(out, 0)
        except (AttributeError, KeyError, NotImplementedError):
            written = token * len(self.features(torch.zeros(1, 3, self._side, self._side)))
        return PictureText.of(written, token)

    # -------------------------------------------------------------------------------------------------- pictures

    def decode_request(self, kind: Kind, options: VideoOptions, siblings: int) -> DecodeRequest:  # noqa: ARG002
        refuse_sizes(options, self._side)
        cells = sum(self.picture.runs)
        sampling = frame_sampling(options, cells_per_frame=cells, most=MOST_FRAMES, fps=None, spread="ends")
        edge = self._images.size.shortest_edge
        return DecodeRequest(
            kind=kind,
            resize=FixedSize(height=self._side, width=self._side),
            interpolation=interpolation_of(self._images),
            tiling=None if edge is None else ShortestEdgeCrop(edge=edge, side=self._side),
            sampling=sampling if kind == "video" else SamplingPolicy(),
        )

    def patch_grid(self, frames: VideoFrames) -> PatchGrid:
        rows, merge = self._side // self._patch, 1
        if self._grid[0] == self._grid[1] and rows % self._grid[0] == 0:
            merge = rows // self._grid[0]
        return PatchGrid(
            pixels=frames.pixels,
            times_s=frames.times_s,
            temporal_patch_size=1,
            patch_size=self._patch,
            merge_size=merge,
            pooled=None if (rows // merge, rows // merge) == self._grid else self._grid,
        )

    # ---------------------------------------------------------------------------------------------------- prompt

    def render(self, chat: Sequence[ChatMessage]) -> str:
        text: str = self._processor.apply_chat_template(
            chat_with_marks(chat), add_generation_prompt=True, tokenize=False
        )
        return text

    def placeholder_pattern(self, kind: Kind) -> str:
        return re.escape(self._processor.image_token) if kind == "image" else CLIP_MARK

    def placeholder_id(self, kind: Kind) -> int:  # noqa: ARG002 (a clip's frames are images)
        return self._image_token_id

    def write_item(self, item: MediaItem) -> ItemText:
        slots = item.grid.slots
        bounds = np.cumsum([0, *self.picture.runs * slots])
        runs = tuple(np.arange(start, stop) for start, stop in pairwise(bounds))
        return ItemText(text=self.picture.text * slots, runs=runs)

    def positions(self, length: int, spans: Sequence[DenseSpan], items: Sequence[MediaItem]) -> np.ndarray:  # noqa: ARG002
        return plain_positions(length)

    # ----------------------------------------------------------------------------------------------------- model

    def patch_batch(self, item: MediaItem, slot_start: int, slot_stop: int) -> PatchBatch:
        return slot_patches(item, slot_start, slot_stop, processor=self._images)

    def encode(self, batch: PatchBatch) -> EncodedCells:
        return EncodedCells(embeddings=self.features(join_patches(batch, self._side // self._patch)))

    def features(self, pictures: torch.Tensor) -> torch.Tensor:
        """(n, 3, H, W) normalised -> (n * P, D), by the model's own encoder."""
        weight = next(self._model.parameters())
        found = self._model.get_image_features(pictures.to(weight.device, weight.dtype)).pooler_output
        joined = torch.cat(list(found)) if isinstance(found, list | tuple) else found
        return joined.reshape(-1, joined.shape[-1])

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return embed_words(self._text.get_input_embeddings(), token_ids, self._image_token_id)

    def forward(
        self,
        embeds: torch.Tensor,
        positions: torch.Tensor,
        visual: VisualRows | None,
        planned: PlannedAttention,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        assert visual is None or not visual.planes
        out = self._text(inputs_embeds=embeds[None], position_ids=positions, use_cache=False, planned=planned)
        hidden: torch.Tensor = out.last_hidden_state[0]
        return hidden if wanted is None else hidden[wanted]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._model.get_output_embeddings()(hidden).float()
        return logits


def join_patches(batch: PatchBatch, side: int) -> torch.Tensor:
    """The patches of whole pictures, side x side each, as (n, 3, H, W), whatever order they stand in."""
    patch = math.isqrt(batch.pixel_values.shape[1] // 3)
    place = torch.from_numpy(np.argsort(batch.rows[: side * side] * side + batch.cols[: side * side]))
    patches = batch.pixel_values.view(-1, side * side, 3, patch, patch)[:, place]
    pictures = patches.view(-1, side, side, 3, patch, patch).permute(0, 3, 1, 4, 2, 5)
    return pictures.reshape(-1, 3, side * patch, side * patch)


def _side_of(images: Any) -> int:
    """Pixels of the square that every picture becomes."""
    size = images.crop_size if getattr(images, "do_center_crop", False) else images.size
    if not size or not size.height or size.height != size.width:
        raise EngineStartError(f"pictures of size {size} are not squares of one size, which is all that can be served")
    return int(size.height)


def _patch_of(vision: Any, side: int) -> int:
    patch = getattr(vision, "patch_size", None)
    if not isinstance(patch, int) or side % patch:
        raise EngineStartError(f"pictures of {side} pixels do not divide into patches of {patch}")
    return patch


def _grid_of(runs: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of cells: a run for each row, or one square run. Worked example: (3, 3) is 2 x 3, (9,) 3 x 3."""
    side = math.isqrt(runs[0]) if len(runs) == 1 else 0
    if len(set(runs)) != 1 or (len(runs) == 1 and side * side != runs[0]):
        raise EngineStartError(f"a picture written as runs of {runs} cells has no rows and columns")
    return (len(runs), runs[0]) if side == 0 else (side, side)


def _shape_of(config: Any, text_model: Any, width: int) -> DecoderShape:
    text = config.get_text_config(decoder=True)
    heads = text.num_attention_heads
    return DecoderShape(
        num_layers=text.num_hidden_layers,
        num_kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
        hidden_size=width,
        vocab_size=text_model.get_input_embeddings().weight.shape[0],
        max_positions=text.max_position_embeddings,
        rope_axes=1,
        num_planes=0,
        layers=layers_of(text),
    )
