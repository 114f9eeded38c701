"""InternVL's cut of one picture into squares: the arrangement of tiles whose shape is nearest to the picture's. Owns
that choice as a pure function of sizes; knows nothing of decoding, patches or prompts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from vision.resize import Interpolation, resize_frames
from vision.tiling import Size, cut_squares


@dataclass(frozen=True, slots=True, kw_only=True)
class AspectTiles:
    """The picture stretched to the best arrangement of `min_tiles` to `max_tiles` squares of `side`, row by row, and
    the whole picture last. A picture that takes one tile is that tile alone.

    Worked example, up to 4 tiles: 64 x 190 pixels (1 : 2.97) become 1 row of 3 columns and the whole, four pictures.
    """

    side: int
    min_tiles: int
    max_tiles: int

    def cut(self, picture: torch.Tensor, shown: Size, interpolation: Interpolation) -> torch.Tensor:
        rows, columns = self.layout(shown)
        canvas = resize_frames(picture, (rows * self.side, columns * self.side), interpolation=interpolation)
        tiles = cut_squares(canvas, self.side)
        if len(tiles) == 1:
            return tiles
        whole = resize_frames(picture, (self.side, self.side), interpolation=interpolation)
        return torch.cat((tiles, whole[None]))

    def layout(self, shown: Size) -> Size:
        """(rows, columns) of tiles. Of arrangements equally near in shape the larger one, while the picture has more
        than half its pixels."""
        height, width = shown
        best, best_gap = (1, 1), math.inf
        for rows, columns in self._arrangements():
            gap = abs(width / height - columns / rows)
            is_filled = height * width > 0.5 * self.side**2 * rows * columns
            if gap < best_gap or (gap == best_gap and is_filled):
                best, best_gap = (rows, columns), gap
        return best

    def _arrangements(self) -> list[Size]:
        """(rows, columns), few tiles first; of equally many, few columns first."""
        counts = range(1, self.max_tiles + 1)
        pairs = [(rows, columns) for columns in counts for rows in counts]
        allowed = [(r, c) for r, c in pairs if self.min_tiles <= r * c <= self.max_tiles]
        return sorted(allowed, key=lambda size: size[0] * size[1])
