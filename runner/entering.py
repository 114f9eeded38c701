"""Which patches of a clip enter the encoder, and so what each slot costs. Owns the step from kept cells to patches;
knows no model, no queue and not how cells were chosen.

`full` encodes every patch of a slot. `skip` and `reuse` encode those under kept cells; with `reuse` these see a whole
picture all the same, with `skip` only each other. A slot that keeps nothing is not encoded at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evs.policy import Encoder
from evs.selection import Selection
from vision.patches import PatchGrid
from vision.towers.pooling import resample

ALL_ENCODERS: tuple[Encoder, ...] = ("full", "skip", "reuse")

# Above this share of kept cells, gathering them costs more than encoding the others saves.
FULL_SHARE = 0.7


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EnteringPatches:
    """present: (T, patches of a slot) bool, in merge-group order. before: (T + 1,) int64, patches in slots [0, t)."""

    present: np.ndarray
    before: np.ndarray

    def reach(self, slot: int, patches: int) -> int:
        """The slot before which to stop when encoding begins at `slot` and may take so many patches; slots that cost
        nothing come along.

        Worked example, slots of 4, 0, 2, 3, 0 patches: from 0 with 5 patches stop at 2; with 9, at 5; with 3, at 0.
        """
        return int(np.searchsorted(self.before, self.before[slot] + patches, side="right")) - 1

    def next_stop(self, slot: int) -> int:
        """The slot before which to stop so that one slot that costs something is encoded.

        Worked example, slots of 0, 4, 2: from 0 stop at 2.
        """
        return int(np.searchsorted(self.before, self.before[slot], side="right"))

    def runs(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Half-open runs of slots in [start, stop) that have patches. Worked example, 4, 0, 2, 3, 0: (0, 1), (2, 4)."""
        costs = np.concatenate(([False], np.diff(self.before[start : stop + 1]) > 0, [False]))
        edges = np.flatnonzero(np.diff(costs.astype(np.int8))) + start
        return [(int(first), int(last)) for first, last in edges.reshape(-1, 2)]


def encoders_of(family: object) -> tuple[Encoder, ...]:
    """The modes that a family's encoder can run in; one that names none encodes whole slots."""
    encoders: tuple[Encoder, ...] = getattr(family, "encoders", ("full",))
    return encoders


def settle_encoder(wanted: Encoder, selection: Selection) -> Encoder:
    """`reuse` becomes `full` where it would save little."""
    return "full" if wanted == "reuse" and selection.kept_share > FULL_SHARE else wanted


def entering_patches(grid: PatchGrid, selection: Selection, encoder: Encoder) -> EnteringPatches:
    if encoder == "full":
        whole = selection.keep.any(axis=1, keepdims=True)
        present = np.broadcast_to(whole, (grid.slots, grid.patches_per_slot))
    elif grid.pooled is None:
        present = np.repeat(selection.keep, grid.merge_size**2, axis=1)
    else:
        present = _under_pooled(grid, selection.keep)
    return EnteringPatches(present=present, before=np.concatenate(([0], np.cumsum(present.sum(axis=1)))))


def _under_pooled(grid: PatchGrid, keep: np.ndarray) -> np.ndarray:
    """The union of the patches that kept cells read."""
    _, rows, columns = grid.patch_grid
    assert grid.pooled is not None and grid.pictures_per_slot == 1, "only clips are pruned"
    taps = resample(np.arange(rows * columns).reshape(rows, columns), grid.pooled)
    present = np.zeros((grid.slots, rows * columns), dtype=np.bool_)
    slots, cells = np.nonzero(keep)
    for patches, weights in zip(taps.patches.T, taps.weights.T, strict=True):
        read = weights[cells] > 0
        present[slots[read], patches[cells[read]]] = True
    return present
