"""What the families over SigLIP towers share: pictures of one square size, plain rope, a decoder that takes embeddings
and nothing else. Owns no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
import torchvision

from runner.requests import VideoOptions
from vision.errors import InvalidMediaOptionError
from vision.resize import Interpolation
from vision.sampling import SamplingPolicy
from vision.towers.packed import PatchBatch
from vision.towers.siglip import SiglipTower

# PIL's numbers, as processors' configs write them.
RESAMPLES: dict[int, Interpolation] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}


def plain_positions(length: int) -> np.ndarray:
    """(1, length) int64: the index in the dense prompt."""
    return np.arange(length, dtype=np.int64)[None]


def whole_tower(
    tower: Any,
    order: Callable[[Any, PatchBatch], torch.Tensor],
    project: Callable[[torch.Tensor], torch.Tensor],
) -> SiglipTower:
    """All layers of a SigLIP tower and its last norm, then `project`: (rows, D_vision) -> (cells, D). order: see
    SiglipTower."""

    def finish(hidden: torch.Tensor) -> torch.Tensor:
        return project(tower.post_layernorm(hidden))

    return SiglipTower(tower, order, finish, after=(len(tower.encoder.layers),))


def embed_words(table: Any, token_ids: torch.Tensor, image_token_id: int) -> torch.Tensor:
    """Rows of the embedding table; the image token may lie outside of it, and its rows are written over anyway."""
    embeds: torch.Tensor = table(token_ids.masked_fill(token_ids == image_token_id, 0))
    return embeds


def stamp(time_s: float) -> str:
    """Minutes and whole seconds: 61.9 is "01:01"."""
    return f"{int(time_s // 60):02d}:{int(time_s % 60):02d}"


def crop_to_patches(pixels: np.ndarray, patch_size: int) -> np.ndarray:
    """Leave out the pixels at the far edges that no whole patch covers, as the tower's own convolution does."""
    height, width = (side // patch_size * patch_size for side in pixels.shape[2:])
    return pixels[:, :, :height, :width]


def interpolation_of(processor: Any) -> Interpolation:
    """As transformers decides it: LANCZOS is bicubic where torchvision cannot do it on tensors."""
    wanted = RESAMPLES[int(processor.resample)]
    version = tuple(int(part) for part in torchvision.__version__.split(".")[:2])
    return "bicubic" if wanted == "lanczos" and version < (0, 27) else wanted


def refuse_sizes(options: VideoOptions, side: int) -> None:
    """Raises InvalidMediaOptionError for options on the size of pictures."""
    for name in ("min_pixels", "max_pixels"):
        if getattr(options, name) is not None:
            raise InvalidMediaOptionError(
                f"{name} cannot be set: this model sees every picture as {side}x{side} pixels", param=name
            )


def most_frames(options: VideoOptions, *, cells_per_frame: int, default: int) -> int:
    """The bound on frames: the request's own or the family's, and what max_tokens leaves room for."""
    wanted: Sequence[int | None] = (options.max_frames, options.num_frames)
    most = next((count for count in wanted if count is not None), default)
    if options.max_tokens is None:
        return most
    if options.max_tokens < cells_per_frame:
        raise InvalidMediaOptionError(
            f"max_tokens must be at least {cells_per_frame}, the tokens of one frame; got {options.max_tokens}",
            param="max_tokens",
        )
    return min(most, options.max_tokens // cells_per_frame)


def frame_sampling(
    options: VideoOptions,
    *,
    cells_per_frame: int,
    most: int,
    fps: float | None,
    spread: Literal["ends", "middles"],
) -> SamplingPolicy:
    """The request's rate or number of frames, else the family's `fps`, else `most` of them."""
    most = most_frames(options, cells_per_frame=cells_per_frame, default=most)
    number = options.num_frames
    if options.fps is not None or number is not None:
        fps = options.fps
    elif fps is None:
        number = most
    return SamplingPolicy(
        fps=fps,
        num_frames=number,
        max_frames=most,
        spread=spread,
        start_s=options.start_s,
        end_s=options.end_s,
    )
