"""SigLIP-style vision towers over packed patches. Reuses the tower's own submodules; owns only where rows are placed
and how they are attended. Source: the SigLIP and Idefics3 papers and transformers' modules, which tests hold it
against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from vision.towers.arranged import Arranged, Attends, Read, batch_view
from vision.towers.packed import EncodedCells, PatchBatch, embed_patches
from vision.towers.pooling import pool_taps
from vision.towers.rotary import Attend


class SiglipTower:
    """module: has `embeddings` and `encoder.layers` as transformers' SiglipVisionModel has. order(module, batch): (R,)
    rows of its table of positions. project: the states after the layers `after`, see hidden_states, to cells; where
    cells are pooled, of the patches, which the batch's taps then pool."""

    def __init__(
        self,
        module: Any,
        order: Callable[[Any, PatchBatch], torch.Tensor],
        project: Callable[[torch.Tensor], torch.Tensor],
        *,
        after: Sequence[int],
    ) -> None:
        self._module, self._order, self._project, self._after = module, order, project, tuple(after)

    @property
    def weight(self) -> torch.Tensor:
        weight: torch.Tensor = self._module.embeddings.patch_embedding.weight
        return weight

    def arrange(self, batch: PatchBatch) -> Arranged:
        arrays = {"table": self._order(self._module, batch).numpy()}
        if batch.taps is not None:
            arrays |= {"taps": batch.taps.patches, "tap_weights": batch.taps.weights}
        return Arranged(arrays=arrays, views={"slots": batch_view(batch)})

    def run(self, pixel_values: torch.Tensor, read: Read, attend: Attends) -> EncodedCells:
        hidden = hidden_states(self._module, pixel_values, read["table"], attend["slots"], after=self._after)
        cells = self._project(hidden)
        if "taps" in read:
            cells = pool_taps(cells, read["taps"], read["tap_weights"])
        return EncodedCells(embeddings=cells)


def hidden_states(
    tower: Any, pixel_values: torch.Tensor, table_rows: torch.Tensor, attend: Attend, *, after: Sequence[int]
) -> torch.Tensor:
    """(R, len(after) * D_vision): the states after these layers side by side, before any final norm.

    tower: has `embeddings` and `encoder.layers` as transformers' SiglipVisionModel has. table_rows: (R,) int64, each
    patch's row of the position table. after: 0 is what enters the first layer; layers past the last one are not run.
    """
    hidden = _embed(tower.embeddings, pixel_values, table_rows)  # (R, D_vision)
    states = {0: hidden}
    for number, layer in enumerate(tower.encoder.layers[: max(after)], start=1):
        hidden = hidden + _attention(layer.self_attn, layer.layer_norm1(hidden), attend)
        hidden = hidden + layer.mlp(layer.layer_norm2(hidden))
        if number in after:
            states[number] = hidden
    return torch.cat([states[number] for number in after], dim=-1)


def reading_order(tower: Any, batch: PatchBatch) -> torch.Tensor:
    """(R,) rows of the position table of a tower that sees squares of its own size only: row * side + column."""
    side = _table_side(tower)
    return torch.from_numpy(batch.rows * side + batch.cols)


def stretched_order(tower: Any, batch: PatchBatch) -> torch.Tensor:
    """(R,) rows of the position table for pictures of any size, as SmolVLM places them: a patch's share of the way down
    and across, sorted into the table's buckets.

    In float32 as the models were trained, where a share can fall below the bucket's edge that it should meet.

    Worked example, a picture of 2 x 2 patches on a table of 4 x 4: shares 0 and 0.5, buckets 0 and 2, rows 0, 2, 8, 10.
    """
    side = _table_side(tower)
    edges = torch.arange(1 / side, 1.0, 1 / side)

    def buckets(places: np.ndarray, sizes: np.ndarray) -> torch.Tensor:
        share = torch.from_numpy(places).to(torch.float32) * (1.0 / torch.from_numpy(sizes))
        return torch.bucketize(share.clamp(max=1.0 - 1e-6), edges, right=True)

    return buckets(batch.rows, batch.heights) * side + buckets(batch.cols, batch.widths)


def shuffle_pixels(hidden: torch.Tensor, scale: int) -> torch.Tensor:
    """(R, D) in merge-group order to (R / scale**2, scale**2 * D): a cell's patches side by side."""
    return hidden.view(-1, scale * scale * hidden.shape[-1])


def _table_side(tower: Any) -> int:
    return int(tower.embeddings.position_embedding.num_embeddings**0.5)


def _embed(embeddings: Any, pixel_values: torch.Tensor, table_rows: torch.Tensor) -> torch.Tensor:
    patches = embed_patches(embeddings.patch_embedding, pixel_values)
    positions: torch.Tensor = embeddings.position_embedding(table_rows.to(patches.device))
    return patches + positions


def _attention(attn: Any, hidden: torch.Tensor, attend: Attend) -> torch.Tensor:
    q, k, v = (
        project(hidden).view(len(hidden), attn.num_heads, -1) for project in (attn.q_proj, attn.k_proj, attn.v_proj)
    )  # each (R, H, K)
    projected: torch.Tensor = attn.out_proj(attend(q, k, v, attn.scale).flatten(1))
    return projected
