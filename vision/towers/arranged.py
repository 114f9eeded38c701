"""A tower in two halves: what it must know of a batch beside its pixels, as arrays, and the computing, which reads
these and nothing else. Owns the seam, and the way of one batch through both; knows no tower and no model.

The halves are apart so that the second can be run again and again over tensors that keep their addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from vision.towers.keys import Segments
from vision.towers.packed import EncodedCells, PatchBatch
from vision.towers.rotary import Attend
from vision.towers.sight import PlanAttention, Sight

Read = Mapping[str, torch.Tensor]
Attends = Mapping[str, Attend]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class View:
    """The segments in which some layers attend, whose rows stand in the batch's order, or in another: row i is the
    batch's row order[i]. Their keys are numbered as the batch numbers them."""

    segments: Segments
    order: np.ndarray | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arranged:
    """arrays: by name, int64 or float32, of shapes that follow from the numbers of patches, segments and cells alone.
    views: by name; each layer attends in one of them."""

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    views: dict[str, View]


class Tower(Protocol):
    """A vision encoder over packed patches. Lives beside the module whose weights it reads."""

    @property
    def weight(self) -> torch.Tensor:
        """One of its weights: where it computes, and in which dtype."""
        ...

    def arrange(self, batch: PatchBatch) -> Arranged: ...

    def run(self, pixel_values: torch.Tensor, read: Read, attend: Attends) -> EncodedCells:
        """pixel_values (R, D_in); read: the arrays on the device; attend[name](q, k, v, scale) over (R, H, K) rows."""
        ...


def batch_view(batch: PatchBatch) -> View:
    """Rows as they came, and what each segment sees."""
    keys = batch.keys
    return View(
        segments=Segments(
            cu_seqlens=batch.cu_seqlens,
            index=None if keys is None else keys.index,
            cu_keys=None if keys is None else keys.cu_keys,
        )
    )


def encode_arranged(tower: Tower, batch: PatchBatch, plan: PlanAttention) -> EncodedCells:
    """Encode one batch, and keep what its clips' next parts will read. plan(segments) gives the attention in which rows
    see those segments' keys."""
    arranged, sight = tower.arrange(batch), Sight(batch, plan)
    device = tower.weight.device
    read = {name: torch.from_numpy(array).to(device) for name, array in arranged.arrays.items()}
    attend = {name: sight.arranged(view.segments, view.order) for name, view in arranged.views.items()}
    cells = tower.run(batch.pixel_values, read, attend)
    return EncodedCells(embeddings=cells.embeddings, planes=cells.planes, carry=sight.carry)
