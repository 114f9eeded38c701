"""From a policy and a clip to its Selection: at once, or once its cells are encoded. Owns the choice of method; knows
nothing of how each one chooses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from evs.baselines import keep_random, keep_uniform
from evs.blocks import measure_blocks
from evs.cells import CellGrid
from evs.count import count_kept
from evs.gate import GateRules, gate_cells
from evs.policy import EvsPolicy
from evs.selection import Selection, keep_all
from evs.similarity import keep_turned


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingSelection:
    """How many of T x P cells will be kept; which ones is known when all of them are encoded (method `evs`)."""

    slots: int
    cells_per_slot: int
    rate: float

    def __post_init__(self) -> None:
        count_kept(self.slots, self.cells_per_slot, self.rate)  # refuses what has no count

    @property
    def cells(self) -> int:
        return self.slots * self.cells_per_slot

    @property
    def kept(self) -> int:
        """Exactly what `finish` will keep."""
        return count_kept(self.slots, self.cells_per_slot, self.rate)

    def finish(self, embeddings: torch.Tensor) -> Selection:
        """The Selection, from the encoder's outputs: (T, P, D), or (T * P, D) in the order of the cells."""
        if embeddings.shape[:-1] not in ((self.cells,), (self.slots, self.cells_per_slot)):
            raise ValueError(
                f"{tuple(embeddings.shape)} embeddings do not fit {self.slots} slots of {self.cells_per_slot} cells"
            )
        return keep_turned(embeddings.reshape(self.slots, self.cells_per_slot, -1), self.rate)


def start_selection(pixels: npt.NDArray[np.uint8], cells: CellGrid, policy: EvsPolicy) -> Selection | PendingSelection:
    """The Selection where the method needs no encoder, else the promise of one.

    pixels: (T * frames_per_slot, C, H, W), resized and not yet normalised.
    """
    if policy.method != "evs":
        return select_cells(pixels, cells, policy)
    assert policy.rate is not None
    return PendingSelection(slots=cells.slots_of(pixels.shape), cells_per_slot=cells.cells_per_slot, rate=policy.rate)


def select_cells(pixels: npt.NDArray[np.uint8], cells: CellGrid, policy: EvsPolicy) -> Selection:
    """The Selection of a method that needs no encoder; raises ValueError for `evs`, which does."""
    slots, cells_per_slot = cells.slots_of(pixels.shape), cells.cells_per_slot
    match policy.method:
        case "none":
            return keep_all(slots, cells_per_slot)
        case "gate":
            return gate_cells(measure_blocks(pixels, cells), _gate_rules(policy))
        case "uniform":
            assert policy.rate is not None
            return keep_uniform(slots, cells_per_slot, policy.rate)
        case "random":
            assert policy.rate is not None and policy.seed is not None
            return keep_random(slots, cells_per_slot, policy.rate, seed=policy.seed)
        case "evs":
            raise ValueError("method 'evs' chooses after the encoder: use start_selection and PendingSelection.finish")


def _gate_rules(policy: EvsPolicy) -> GateRules:
    assert policy.threshold is not None and policy.refresh is not None
    assert policy.scene_cut is not None and policy.floor is not None
    return GateRules(
        threshold=policy.threshold,
        refresh=policy.refresh,
        scene_cut=policy.scene_cut,
        floor=policy.floor,
        rate=policy.rate,
    )
