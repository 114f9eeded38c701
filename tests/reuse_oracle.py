"""The slow oracle of encoder mode `reuse`: transformers' own tower, untouched, over all cells of whole pictures; in
front of every layer the rows of dropped places are overwritten by their owner's row. Owns that and nothing of ours but
the order of patches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from vision.patches import PatchGrid
from vision.towers.packed import patch_places

Rows = Callable[[torch.Tensor], torch.Tensor]


@torch.inference_mode()
def encode_with_owners(model: Any, processor: Any, grid: PatchGrid, present: np.ndarray) -> torch.Tensor:
    """(1 + planes, T * P, D) of all cells; those of dropped places mean nothing. present: (T, patches) bool in
    merge-group order, slot 0 whole. With all present this is the untouched model."""
    sources = np.zeros(present.shape, dtype=np.int64)
    for slot, row in enumerate(present):
        sources[slot] = np.where(row, slot, sources[max(slot - 1, 0)])
    flat = (sources * present.shape[1] + np.arange(present.shape[1])).reshape(-1)
    kind = model.config.model_type
    if kind in ("smolvlm", "llava_onevision", "gemma3", "paligemma"):
        return _encode_pictures(model, processor, grid, _in_reading_order(flat, grid, present.shape))
    tower, thw = model.model.visual, torch.tensor([list(grid.patch_grid)])
    values = processor.video_processor
    patches = _patches(grid, mean=values.image_mean, std=values.image_std)
    order = _layer_order(tower, patches, thw) if kind == "qwen2_5_vl" else np.arange(len(flat))
    with _overwriting(tower.blocks, np.argsort(order)[flat[order]]):
        out = tower(patches, grid_thw=thw)
    return torch.stack((out.pooler_output, *(getattr(out, "deepstack_features", None) or ())))


def _layer_order(tower: Any, patches: torch.Tensor, thw: torch.Tensor) -> np.ndarray:
    """(R,): row i of what enters the first layer is patch order[i]. Found by looking: patches are all different."""
    seen = []
    hooks = [
        tower.patch_embed.register_forward_hook(lambda _module, _args, out: seen.append(out)),
        tower.blocks[0].register_forward_pre_hook(lambda _module, args: seen.append(args[0])),
    ]
    tower(patches, grid_thw=thw)
    for hook in hooks:
        hook.remove()
    order = torch.cdist(seen[1], seen[0]).argmin(dim=1).numpy()
    assert sorted(order.tolist()) == list(range(len(patches)))
    return order


def _encode_pictures(model: Any, processor: Any, grid: PatchGrid, sources: np.ndarray) -> torch.Tensor:
    values = getattr(processor, "video_processor", processor.image_processor)
    pictures = _normalised(grid, mean=values.image_mean, std=values.image_std)[None]
    if model.config.model_type == "smolvlm":
        with _overwriting(model.model.vision_model.encoder.layers, sources):
            mask = torch.ones(pictures.shape[:2] + pictures.shape[3:], dtype=torch.bool)
            return torch.cat(list(model.get_image_features(pictures, mask).pooler_output))[None]
    tower = getattr(model.model.vision_tower, "vision_model", model.model.vision_tower)
    with _overwriting(tower.encoder.layers, sources):
        if model.config.model_type in ("gemma3", "paligemma"):
            return model.get_image_features(pictures[0]).pooler_output.flatten(0, 1)[None]
        rows = model.get_video_features(pictures).pooler_output[0]
    return rows[: grid.slots * grid.cells_per_slot][None]  # behind them may stand a newline


def _in_reading_order(sources: np.ndarray, grid: PatchGrid, shape: tuple[int, ...]) -> np.ndarray:
    rows, cols = patch_places(*grid.patch_grid[1:], grid.merge_size)
    within = rows * grid.patch_grid[2] + cols
    number = (np.arange(shape[0])[:, None] * shape[1] + within).reshape(-1)  # reading-order number of each patch
    moved = np.empty_like(sources)
    moved[number] = number[sources]
    return moved


@contextmanager
def _overwriting(layers: Any, sources: np.ndarray) -> Iterator[None]:
    index = torch.from_numpy(sources)

    def overwrite(_module: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden = args[0]
        return hidden.reshape(-1, hidden.shape[-1])[index].view(hidden.shape), *args[1:]

    handles = [layer.register_forward_pre_hook(overwrite) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _normalised(grid: PatchGrid, *, mean: list[float], std: list[float]) -> torch.Tensor:
    shape = (1, 3, 1, 1)
    pixels = torch.from_numpy(grid.pixels.copy()).float() / 255
    return (pixels - torch.tensor(mean).view(shape)) / torch.tensor(std).view(shape)


def _patches(grid: PatchGrid, *, mean: list[float], std: list[float]) -> torch.Tensor:
    """(T * patches, 3 * temporal * patch * patch), cut picture by picture with a loop."""
    pixels, patch, temporal = _normalised(grid, mean=mean, std=std), grid.patch_size, grid.temporal_patch_size
    rows, cols = patch_places(*grid.patch_grid[1:], grid.merge_size)
    cut = [
        pixels[slot * temporal : (slot + 1) * temporal, :, r * patch : (r + 1) * patch, c * patch : (c + 1) * patch]
        for slot in range(grid.slots)
        for r, c in zip(rows, cols, strict=True)
    ]
    return torch.stack([part.transpose(0, 1).flatten() for part in cut])
