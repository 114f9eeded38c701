"""Cuts of one picture into squares: as InternVL, tiles in the arrangement whose shape is nearest to the picture's; as
CLIP, the middle. Owns those choices as pure functions of sizes; knows nothing of decoding, patches or prompts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortestEdgeCrop:
    """As CLIP's processor: the shorter side to `edge` with the shape kept, then the square of `side` in the middle.

    Worked example, edge and side 40: 64 x 190 pixels become 40 x 118, of which columns 39 to 78 stay.
    """

    edge: int
    side: int

    def cut(self, picture: torch.Tensor, shown: Size, interpolation: Interpolation) -> torch.Tensor:
        height, width = shown
        short, long = self.edge, int(self.edge * max(shown) / min(shown))
        size = (short, long) if height <= width else (long, short)
        resized = resize_frames(picture, size, interpolation=interpolation)
        pad = [max(0, self.side - length) for length in (size[1], size[0])]
        padded = F.pad(resized, (pad[0] // 2, (pad[0] + 1) // 2, pad[1] // 2, (pad[1] + 1) // 2))
        top, left = (int((length - self.side) / 2.0) for length in padded.shape[-2:])
        return padded[None, :, top : top + self.side, left : left + self.side].contiguous()
