"""The Selection: which cells of one clip or image the language model will read. Owns the type and its statistics; knows
nothing of how cells are scored, encoded or laid out in a prompt."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Selection:
    """keep: (T, P) bool, at least one cell in all. `method` is the policy that chose.

    Worked example: keep [[1, 1, 1], [0, 1, 0]] has kept 4, kept_per_slot (3, 1), and kept cells [0, 1, 2, 4] in
    raster order over slots.
    """

    keep: np.ndarray
    method: str

    def __post_init__(self) -> None:
        if self.keep.ndim != 2 or self.keep.dtype != np.bool_:
            raise ValueError(f"keep must be (T, P) bool, got {self.keep.shape} {self.keep.dtype}")
        if not self.keep.any():
            raise ValueError("a Selection keeps at least one cell")
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
    def kept_per_slot(self) -> tuple[int, ...]:
        return tuple(self.keep.sum(1).tolist())

    @property
    def kept_cells(self) -> np.ndarray:
        """(kept,) int64: flat cell numbers t * P + p, rising."""
        cells: np.ndarray = np.flatnonzero(self.keep)
        return cells


def keep_all(slots: int, cells_per_slot: int) -> Selection:
    """The identity Selection (method `none`)."""
    return Selection(keep=np.ones((slots, cells_per_slot), dtype=np.bool_), method="none")
