"""The Selection: which cells of one clip or image the language model will read. Owns the type and its statistics; knows
nothing of how cells are scored, encoded or laid out in a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

WholeReason = Literal["first", "refresh", "cut"]
"""Why a slot is kept whole: it is slot 0, its turn to be refreshed came, or too much of it changed at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeSlot:
    """A slot that a rule kept whole, and the rule."""

    slot: int
    reason: WholeReason


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Selection:
    """keep: (T, P) bool, at least one cell in all. `method` is the policy that chose. `whole`: the slots that a rule
    kept whole, rising; a slot that is whole only because each of its cells was chosen is not among them.

    Worked example: keep [[1, 1, 1], [0, 1, 0]] has kept 4, kept_per_slot (3, 1), kept cells [0, 1, 2, 4] in
    raster order over slots, kept_share 4 / 6 and kept_share_per_slot (1, 1 / 3).
    """

    keep: np.ndarray
    method: str
    whole: tuple[WholeSlot, ...] = ()

    def __post_init__(self) -> None:
        if self.keep.ndim != 2 or self.keep.dtype != np.bool_:
            raise ValueError(f"keep must be (T, P) bool, got {self.keep.shape} {self.keep.dtype}")
        if not self.keep.any():
            raise ValueError("a Selection keeps at least one cell")
        slots = [whole.slot for whole in self.whole]
        if slots != sorted(set(slots)) or any(not 0 <= slot < len(self.keep) for slot in slots):
            raise ValueError(f"whole slots must rise within [0, {len(self.keep)}), got {slots}")
        broken = [slot for slot in slots if not self.keep[slot].all()]
        if broken:
            raise ValueError(f"slots {broken} are named as whole and have dropped cells")
        self.keep.setflags(write=False)

    @property
    def slots(self) -> int:
        return int(self.keep.shape[0])

    @property
    def cells(self) -> int:
        return int(self.keep.size)

    @property
    def kept(self) -> int:
        return int(self.keep.sum())

    @property
    def kept_share(self) -> float:
        """kept / cells, above 0 and at most 1."""
        return self.kept / self.cells

    @property
    def kept_per_slot(self) -> tuple[int, ...]:
        return tuple(self.keep.sum(1).tolist())

    @property
    def kept_share_per_slot(self) -> tuple[float, ...]:
        return tuple(self.keep.mean(1).tolist())

    @property
    def kept_cells(self) -> np.ndarray:
        """(kept,) int64: flat cell numbers t * P + p, rising."""
        cells: np.ndarray = np.flatnonzero(self.keep)
        return cells

    @property
    def whole_counts(self) -> dict[WholeReason, int]:
        """How many slots each rule kept whole, zeros included."""
        reasons = [whole.reason for whole in self.whole]
        return {reason: reasons.count(reason) for reason in get_args(WholeReason)}


def keep_all(slots: int, cells_per_slot: int) -> Selection:
    """The identity Selection (method `none`)."""
    return Selection(keep=np.ones((slots, cells_per_slot), dtype=np.bool_), method="none")
