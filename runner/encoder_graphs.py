"""The vision encoder in steps of fixed shape: a packed batch, pruned or not, is filled up to the next bucket and run
over tensors that keep their addresses. Owns the buckets' tensors and graphs; knows no items and no store.

How a batch's rows see each other is data like their pixels: how many clips, slots and kept cells there are changes what
the tensors hold, and their shape only from bucket to bucket.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import torch

from attention.tiles import TiledAttention, TileShape, cut_tiles, fitting_tiles
from runner.graphs import Outputs, StaticStep
from runner.route import EncoderBucket, GraphPolicy, Route, round_up, route_encoder
from vision.towers.arranged import Arranged, Tower, View
from vision.towers.packed import EncodedCells, PatchBatch
from vision.towers.padding import pad_batch, segments_to_fill
from vision.towers.sight import move_keys

MOST_GRAPHS = 64


class EncoderGraphs:
    """tower None: the family's encoder is no packed one. refusal: why nothing is captured, as for decode steps."""

    def __init__(self, tower: Tower | None, device: torch.device, *, policy: GraphPolicy, refusal: str | None) -> None:
        self.tower, self._device, self._policy = tower, device, policy
        self._refusal = refusal or ("encoder_not_packed" if tower is None else None)
        self._steps: dict[EncoderBucket, StaticEncoder] = {}
        self._seen: Counter[EncoderBucket] = Counter()
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def route(self, batch: PatchBatch) -> tuple[Route[EncoderBucket], PatchBatch | None, Arranged | None]:
        """How a batch runs; as a graph, the batch filled up and arranged."""
        refusal = self._refusal or _refusal_of(batch)
        if refusal is not None or self.tower is None:
            return Route(mode="eager", bucket=None, reason=refusal or "encoder_not_packed"), None, None
        padded = fill_up(batch)
        arranged = self.tower.arrange(padded)
        views = tuple((name, _tile_shape(padded, view)) for name, view in arranged.views.items())
        bucket = EncoderBucket(patches=len(padded.rows), slots=len(padded.cu_seqlens) - 1, views=views)
        chosen = route_encoder(
            bucket, num_patches=len(batch.rows), policy=self._policy, captured=self._steps.keys(),
            times_seen=self._seen[bucket], is_lazy=self._device.type == "cuda", most=MOST_GRAPHS,
        )  # fmt: skip
        self._seen[bucket] += 1
        return chosen, padded, arranged

    def run(self, bucket: EncoderBucket, padded: PatchBatch, arranged: Arranged) -> EncodedCells:
        """Cells of the padded batch, the real ones first; valid until the next run."""
        assert self.tower is not None
        step = self._steps.get(bucket)
        if step is None:
            step = self._steps[bucket] = StaticEncoder(self.tower, bucket, padded, arranged, self._device, self._pool)
        return step.run(padded, arranged)


class StaticEncoder:
    """One bucket's tensors, and its graph where there are such."""

    def __init__(
        self, tower: Tower, bucket: EncoderBucket, padded: PatchBatch, arranged: Arranged, device: torch.device,
        pool: Any,
    ) -> None:  # fmt: skip
        self._pixels = torch.zeros(padded.pixel_values.shape, dtype=tower.weight.dtype, device=device)
        self._read = {name: torch.from_numpy(array).to(device) for name, array in arranged.arrays.items()}
        self._tiles = {name: TiledAttention(shape, device) for name, shape in bucket.views}
        self._load(padded, arranged)

        def body() -> Outputs:
            cells = tower.run(self._pixels, self._read, {name: tiles.attend for name, tiles in self._tiles.items()})
            return (cells.embeddings, *cells.planes)

        self._step = StaticStep(body, device, pool)

    def run(self, padded: PatchBatch, arranged: Arranged) -> EncodedCells:
        self._load(padded, arranged)
        embeddings, *planes = self._step.replay()
        return EncodedCells(embeddings=embeddings, planes=tuple(planes))

    def _load(self, padded: PatchBatch, arranged: Arranged) -> None:
        self._pixels.copy_(padded.pixel_values)
        for name, array in arranged.arrays.items():
            self._read[name].copy_(torch.from_numpy(array))
        for name, view in arranged.views.items():
            tiles = self._tiles[name]
            tiles.load(cut_tiles(tiles.shape, *_spelled_out(padded, view)))


def fill_up(batch: PatchBatch) -> PatchBatch:
    """To the next numbers of patches and of slots. A cell's patches stay whole: as many as make one divide both
    multiples."""
    patches = round_up(len(batch.rows), 144 if len(batch.rows) % 9 == 0 else 16)
    slots = round_up(len(batch.cu_seqlens) - 1 + segments_to_fill(batch, patches), 1)
    return pad_batch(batch, patches, slots)


def _refusal_of(batch: PatchBatch) -> str | None:
    keys, taps = batch.keys, batch.taps
    if keys is not None and (len(keys.rows) or len(keys.carry_on)):
        return "cut_clip"
    return "more_cells_than_patches" if taps is not None and len(taps) > len(batch.rows) else None


def _tile_shape(padded: PatchBatch, view: View) -> TileShape:
    cu_seqlens, _, cu_keys = _spelled_out(padded, view)
    exact = fitting_tiles(cu_seqlens, cu_keys)
    return TileShape(
        rows=exact.rows,
        tiles=round_up(exact.tiles, 1),
        queries=round_up(exact.queries, 4),
        keys=round_up(exact.keys, 4),
    )


def _spelled_out(padded: PatchBatch, view: View) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """cu_seqlens, keys as rows stand in the view, cu_keys."""
    moved = move_keys(padded, view.segments, view.order)
    return (moved.cu_seqlens, *moved.keys())
