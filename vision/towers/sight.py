"""The attention of a batch through the layers of a tower: what was carried from a clip's earlier part is put before the
batch's own keys, and what its next part will read is set aside. Owns that hand-over; knows no weights and no grouping.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from vision.towers.keys import Segments
from vision.towers.packed import PatchBatch
from vision.towers.rotary import Attend

PlanAttention = Callable[[Segments], Attend]


class Sight:
    """One batch on its way through a tower. plan(segments) gives the attention in which rows see the segments' keys.

    An attention is called once a layer, in the order of the layers. `carry`: for each layer (2, C', H, K), the keys and
    values that the next part will read, in the order of `carry_on`.
    """

    def __init__(self, batch: PatchBatch, plan: PlanAttention) -> None:
        self._keys = batch.keys
        self._batch = batch
        self._plan = plan
        self._level = 0
        self._carry: list[torch.Tensor] = []
        self.carry_on = np.zeros(0, np.int64) if batch.keys is None else batch.keys.carry_on

    @property
    def carry(self) -> tuple[torch.Tensor, ...]:
        return tuple(self._carry)

    def arranged(self, segments: Segments, order: np.ndarray | None) -> Attend:
        """The attention over rows in another order: row i there is the batch's row order[i]. The segments' keys are
        numbered as the batch numbers them."""
        planned = self._plan(move_keys(self._batch, segments, order))
        onward = torch.from_numpy(_mover(self._batch, order)(self.carry_on))

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
            if self._keys is not None and self._keys.carried:
                before = self._keys.carried[self._level].to(k)
                k, v = torch.cat((before[0], k)), torch.cat((before[1], v))
            if len(onward):
                rows = onward.to(k.device)
                self._carry.append(torch.stack((k[rows], v[rows])))
            self._level += 1
            return planned(q, k, v, scale)

        return attend


def move_keys(batch: PatchBatch, segments: Segments, order: np.ndarray | None) -> Segments:
    """The same segments, their keys numbered as the rows stand in `order`, behind those that were carried."""
    if segments.index is None:
        return segments
    return Segments(
        cu_seqlens=segments.cu_seqlens, index=_mover(batch, order)(segments.index), cu_keys=segments.cu_keys
    )


def _mover(batch: PatchBatch, order: np.ndarray | None) -> Callable[[np.ndarray], np.ndarray]:
    """From a key's number in the batch to its number where the rows stand in `order`."""
    if order is None:
        return lambda index: index
    num_carried = 0 if batch.keys is None else len(batch.keys.rows)
    place = np.concatenate((np.arange(num_carried), np.argsort(order) + num_carried))
    return lambda index: place[index]
