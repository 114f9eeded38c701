"""Where the cells of a slot lie in its pixels. Owns the geometry alone; knows nothing of patches, towers or scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

Span = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellGrid:
    """P = h * w cells in reading order: cell (i, j) lies under the pixels rows[i] x columns[j], half-open spans.

    A slot is `frames_per_slot` frames. Spans need not be equal, may overlap (pooling that mixes patches) and may leave
    pixels at the far edges uncovered.

    Worked example: rows ((0, 28), (28, 56)) and columns ((0, 28), (14, 42)) make 4 cells; cell 3 is pixels
    [28:56, 14:42] and shares 14 columns with cell 2.
    """

    rows: tuple[Span, ...]
    columns: tuple[Span, ...]
    frames_per_slot: int

    def __post_init__(self) -> None:
        if self.frames_per_slot < 1:
            raise ValueError(f"frames_per_slot must be at least 1, got {self.frames_per_slot}")
        for name, spans in (("rows", self.rows), ("columns", self.columns)):
            if not spans or any(not 0 <= start < stop for start, stop in spans):
                raise ValueError(f"{name} must be non-empty spans with 0 <= start < stop, got {spans}")

    @classmethod
    def regular(cls, *, grid: tuple[int, int], cell: tuple[int, int], frames_per_slot: int) -> Self:
        """grid = (h, w) cells of cell = (height, width) pixels, side by side from the top left."""
        rows, columns = (
            tuple((place * side, (place + 1) * side) for place in range(count))
            for count, side in zip(grid, cell, strict=True)
        )
        return cls(rows=rows, columns=columns, frames_per_slot=frames_per_slot)

    @property
    def grid(self) -> tuple[int, int]:
        """(h, w)."""
        return len(self.rows), len(self.columns)

    @property
    def cells_per_slot(self) -> int:
        """P."""
        return len(self.rows) * len(self.columns)

    def slots_of(self, shape: tuple[int, ...]) -> int:
        """T of pixels shaped (T * frames_per_slot, C, H, W); raises ValueError when these cells do not fit them."""
        if len(shape) != 4 or shape[0] < 1 or shape[0] % self.frames_per_slot:
            raise ValueError(
                f"pixels of shape {shape} are not (frames, C, H, W) in slots of {self.frames_per_slot} frames"
            )
        needed = max(stop for _, stop in self.rows), max(stop for _, stop in self.columns)
        if needed[0] > shape[2] or needed[1] > shape[3]:
            raise ValueError(f"cells reach {needed} (rows, columns) and the frames have {shape[2:]} pixels")
        return shape[0] // self.frames_per_slot
