"""Tries out what the generic adapter takes for granted, on one small picture, when a model is loaded: pixels, words and
logits must be transformers' own. Owns the comparison and the words of a refusal; serves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from attention.protocol import AttentionMetadata, KVLayout
from attention.sdpa import SdpaBackend
from evs.selection import keep_all
from runner.errors import EngineStartError
from runner.evs_options import KEEP_ALL
from runner.families.generic import GenericVLM, join_patches
from runner.items import Decoded, MediaItem
from runner.pages import pages_for
from runner.requests import VideoOptions
from vision.frames import VideoFrames
from vision.resize import resize_frames

QUESTION = "\nWhat is it?"
PICTURE_SIZE = (90, 130)
PAGE_SIZE = 16


def generic_adapter(model: Any, processor: Any) -> GenericVLM:
    """Raises EngineStartError for a model that does otherwise than the adapter."""
    family = GenericVLM(model, processor)
    with torch.inference_mode():
        _try_out(family, model, processor)
    return family


def _try_out(family: GenericVLM, model: Any, processor: Any) -> None:
    picture = probe_picture()
    inputs = dict(
        processor(
            text=[processor.image_token + QUESTION], images=[picture], return_tensors="pt", add_special_tokens=False
        )
    )
    item = _look(family, picture)
    batch = family.patch_batch(item, 0, 1)
    pixels = next(value for name, value in inputs.items() if name.startswith("pixel_values"))
    side = item.grid.patch_grid[1]
    _check(family, "prepares pictures", torch.equal(join_patches(batch, side), pixels.float()))
    ids = _write(family, item, processor.tokenizer)
    _check(family, "writes pictures into the prompt", ids.tolist() == inputs["input_ids"][0].tolist())
    cells = family.encode(batch).embeddings
    tolerance = 4 * torch.finfo(cells.dtype).eps ** 0.5
    flipped = torch.cat((pixels, pixels.flip(-1)))
    both = family.features(flipped)[: len(cells)]
    _check(family, "encodes a picture beside another", _error(both, cells) < tolerance)
    found, expected = _logits(family, ids, cells), _reference(model, inputs)
    _check(family, "computes logits", _error(found, expected) < tolerance)


def probe_picture() -> torch.Tensor:
    """(3, h, w) uint8, smooth and of a shape that shows stretching and cropping."""
    coarse = torch.rand(1, 3, 6, 8, generator=torch.Generator().manual_seed(0))
    return (F.interpolate(coarse, size=PICTURE_SIZE, mode="bicubic")[0].clamp(0, 1) * 255).to(torch.uint8)


def _check(family: GenericVLM, what: str, holds: bool) -> None:
    if not holds:
        raise EngineStartError(
            f"a checkpoint of type {family.name!r} cannot be served: it {what} in a way of its own, which the generic "
            "adapter does not know"
        )


def _look(family: GenericVLM, picture: torch.Tensor) -> MediaItem:
    """As the decoding process and ingest do."""
    wanted = family.decode_request("image", VideoOptions(), 1)
    if wanted.tiling is not None:
        pixels = wanted.tiling.cut(picture, PICTURE_SIZE, wanted.interpolation)
    else:
        size = wanted.resize.target_size(1, *PICTURE_SIZE)
        pixels = resize_frames(picture, size, interpolation=wanted.interpolation)[None]
    frames = VideoFrames(
        kind="image", pixels=pixels.numpy(), times_s=(0.0,), frame_indices=(0,), duration_s=0.0, source_fps=None,
        source_size=PICTURE_SIZE, codec="", container="", num_frames=1,
    )  # fmt: skip
    decoded = Decoded.of(frames, family.patch_grid(frames))
    return MediaItem.of(decoded, keep_all(1, decoded.grid.cells_per_slot), KEEP_ALL)


def _write(family: GenericVLM, item: MediaItem, tokenizer: Any) -> torch.Tensor:
    written = family.write_item(item)
    ids = tokenizer.encode(written.text + QUESTION, add_special_tokens=False)
    runs = iter(written.runs)
    counts = [len(next(runs)) if token == family.placeholder_id("image") else 1 for token in ids]
    return torch.repeat_interleave(torch.tensor(ids), torch.tensor(counts))


def _logits(family: GenericVLM, ids: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
    """(L, V), over pages, in one chunk."""
    shape, device, length = family.shape, cells.device, len(ids)
    layout = KVLayout(
        num_layers=shape.num_layers, num_pages=pages_for(length, PAGE_SIZE), page_size=PAGE_SIZE,
        num_kv_heads=shape.num_kv_heads, head_dim=shape.head_dim, dtype=cells.dtype, device=device,
        layers=shape.layers,
    )  # fmt: skip
    metadata = AttentionMetadata(
        cu_seqlens=np.array([0, length]), seq_lens=np.array([length]), page_table=np.arange(layout.num_pages)[None]
    )
    embeds = family.embed(ids.to(device))
    embeds[ids.to(device) == family.placeholder_id("image")] = cells.to(embeds.dtype)
    positions = torch.from_numpy(family.positions(length, (), ())).to(device)
    return family.logits(family.forward(embeds, positions, None, SdpaBackend(layout).plan(metadata)))


def _reference(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    """(L, V): transformers' own forward, with its own attention."""
    weight = next(model.parameters())
    given = {
        name: value.to(weight.device, weight.dtype if value.is_floating_point() else None)
        for name, value in inputs.items()
        if isinstance(value, torch.Tensor)
    }
    with _own_attention(model.get_decoder().config):
        logits: torch.Tensor = model(**given, use_cache=False).logits[0].float()
    return logits


@contextmanager
def _own_attention(config: Any) -> Iterator[None]:
    ours = config._attn_implementation
    config._attn_implementation = "sdpa"
    try:
        yield
    finally:
        config._attn_implementation = ours


def _error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Largest difference over the spread."""
    if ours.shape != theirs.shape:
        return float("inf")
    return float((ours.float() - theirs.float()).abs().max() / theirs.float().std())
