"""Which patches LLaVA-OneVision's cells are made of, and where its newlines stand. Owns that arithmetic; knows no model
and no processor.

A clip's frame is its patches pooled to half their side, rounded up. One of several images is its patches. A lone image
is the patches of the whole, then those of its tiles as the picture lies on them: margins left out, and pooled when
there are still too many. Newlines are structural rows: one after a clip or a plain image, one after each row of tiles'
cells.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from runner.families.base import STRUCTURAL
from vision.frames import VideoFrames
from vision.tiling import AnyResolution
from vision.towers.pooling import CellTaps, bounded_size, join_taps, resample, tile_places, unpad


@dataclass(frozen=True, slots=True, kw_only=True)
class LlavaCells:
    """side: patches along a side of one picture. most_places: about how many cells the tiles of an image may give."""

    side: int
    tiling: AnyResolution
    most_places: int

    @property
    def pooled_side(self) -> int:
        return -(-self.side // 2)

    def grid(self, frames: VideoFrames) -> tuple[int, int]:
        """(h, w) cells of a slot; those of a lone image, which lie on two grids, stand in one row."""
        if frames.kind == "video":
            return self.pooled_side, self.pooled_side
        if not _is_cut(frames):
            return self.side, self.side
        height, width = self._canvas(frames)[1]
        return 1, self.side**2 + height * width

    def run(self, frames: VideoFrames) -> np.ndarray:
        """(n,) int64: the cells of all slots as they are read, with newlines.

        Worked example, a lone image of 4 cells as a whole and 2 x 3 as tiles: cells 0 1 2 3, 4 5 6 newline, 7 8 9
        newline. A clip of 2 slots of 4 cells: 0 to 7, newline.
        """
        height, width = self.grid(frames)
        if not _is_cut(frames):
            return np.append(np.arange(len(frames.pixels) * height * width), STRUCTURAL)
        whole, rest = np.split(np.arange(height * width), [self.side**2])
        rows = rest.reshape(self._canvas(frames)[1])
        return np.concatenate((whole, np.pad(rows, ((0, 0), (0, 1)), constant_values=STRUCTURAL).reshape(-1)))

    def taps(self, frames: VideoFrames, slots: int) -> CellTaps:
        """The patches of the cells of so many slots; a slot's patches stand picture by picture."""
        whole = np.arange(self.side**2).reshape(self.side, self.side)
        if not _is_cut(frames):
            slot = resample(whole, self.grid(frames))
            return join_taps([slot.shifted(number * whole.size) for number in range(slots)])
        places, size = self._canvas(frames)
        return join_taps([resample(whole, (self.side, self.side)), resample(places, size).shifted(whole.size)])

    def _canvas(self, frames: VideoFrames) -> tuple[np.ndarray, tuple[int, int]]:
        """The tiles' patches where the picture lies, and the size of the grid of cells that they are pooled to."""
        height, width = self.tiling.canvas(frames.source_size)
        places = tile_places((height // self.tiling.side, width // self.tiling.side), self.side)
        places = unpad(places, frames.source_size)
        return places, bounded_size((places.shape[0], places.shape[1]), self.most_places)


def _is_cut(frames: VideoFrames) -> bool:
    """Whether an image was decoded as a lone one: the whole, and at least one tile."""
    return frames.kind == "image" and len(frames.pixels) > 1
