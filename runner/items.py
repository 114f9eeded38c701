"""One clip or image of a request, decoded and with its Selection made. Owns the type; knows no prompt and no model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from evs.selection import Selection
from vision.frames import VideoFrames
from vision.patches import PatchGrid


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MediaItem:
    """frames: what was decoded; grid: the same pixels as T slots x P cells; selection: the cells that will be read."""

    kind: Literal["image", "video"]
    frames: VideoFrames
    grid: PatchGrid
    selection: Selection

    def __post_init__(self) -> None:
        expected = (self.grid.slots, self.grid.cells_per_slot)
        if self.selection.keep.shape != expected:
            raise ValueError(f"a Selection of {self.selection.keep.shape} does not fit a grid of {expected}")

    def kept_before(self, slot: int) -> int:
        """Kept cells in slots [0, slot): how many encoded rows exist once those slots are encoded."""
        return int(np.count_nonzero(self.selection.keep[:slot]))
