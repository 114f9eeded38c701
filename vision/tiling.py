"""How one upright picture becomes the square pictures that a tower with a fixed input size sees.

Owns the cuts of model families as pure functions of a picture; knows nothing of decoding, patches or prompts. A policy
is sent to the decoding process, and the runner asks the same policy where the tiles lie.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from vision.resize import Interpolation, resize_frames

Size = tuple[int, int]  # (height, width)


class Tiling(Protocol):
    """Must be picklable: it is sent to the decoding process."""

    def cut(self, picture: torch.Tensor, shown: Size, interpolation: Interpolation) -> torch.Tensor:
        """(3, h, w) uint8 to (n, 3, H, W) uint8, all of the size that the request's `resize` states.

        shown: the picture's size as shown, where its pixels are not square; all arithmetic is on that size. A tiling
        for clips gives one picture.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeTwice:
    """SmolVLM without splitting: the longer side to `longest_edge`, then stretched to a square of `side`."""

    longest_edge: int
    side: int

    def cut(self, picture: torch.Tensor, shown: Size, interpolation: Interpolation) -> torch.Tensor:
        first = resize_frames(picture, fit_longest_edge(shown, self.longest_edge), interpolation=interpolation)
        return resize_frames(first, (self.side, self.side), interpolation=interpolation)[None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareTiles:
    """SmolVLM with splitting: the longer side to `longest_edge`, then stretched to whole tiles, row by row, and the
    whole picture last. A picture that fits one tile is that tile alone.

    Worked example, side 50, longest_edge 100: a picture of 64 x 190 pixels becomes 34 x 100, then 50 x 100: tiles
    (0, 0), (0, 1) and the whole, three pictures of 50 x 50.
    """

    longest_edge: int
    side: int

    def cut(self, picture: torch.Tensor, shown: Size, interpolation: Interpolation) -> torch.Tensor:
        first = resize_frames(picture, fit_longest_edge(shown, self.longest_edge), interpolation=interpolation)
        canvas = resize_frames(first, self._canvas(shown), interpolation=interpolation)
        if self.layout(shown) == (0, 0):
            return canvas[None]
        whole = resize_frames(canvas, (self.side, self.side), interpolation=interpolation)
        return torch.cat((cut_squares(canvas, self.side), whole[None]))

    def layout(self, shown: Size) -> tuple[int, int]:
        """(rows, columns) of tiles; (0, 0) when the picture is not cut."""
        height, width = self._canvas(shown)
        rows, columns = height // self.side, width // self.side
        return (rows, columns) if rows * columns > 1 else (0, 0)

    def _canvas(self, shown: Size) -> Size:
        height, width = fit_longest_edge(shown, self.longest_edge)
        aspect = width / height
        if width >= height:
            width = self._whole_tiles(width)
            return self._whole_tiles(int(width / aspect)), width
        height = self._whole_tiles(height)
        return height, self._whole_tiles(int(height * aspect))

    def _whole_tiles(self, pixels: int) -> int:
        return math.ceil(pixels / self.side) * self.side


@dataclass(frozen=True, slots=True, kw_only=True)
class PadToSquare:
    """LLaVA-OneVision, one of several pictures: centred on a square of colour `fill`, then resized to `side`."""

    side: int
    fill: tuple[int, int, int]

    def cut(self, picture: torch.Tensor, shown: Size, interpolation: Interpolation) -> torch.Tensor:  # noqa: ARG002
        height, width = picture.shape[-2:]
        square = max(height, width)
        top, left = (square - height) // 2, (square - width) // 2
        canvas = torch.tensor(self.fill, dtype=torch.uint8).view(3, 1, 1).repeat(1, square, square)
        canvas[:, top : top + height, left : left + width] = picture
        return resize_frames(canvas, (self.side, self.side), interpolation=interpolation)[None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyResolution:
    """LLaVA-OneVision, a lone picture: the whole picture stretched to a square first, then the tiles of the best of
    `canvases`, in which the picture keeps its shape between black margins.

    Worked example, side 40, canvases (40, 80) and (80, 40): (80, 40) keeps most of a picture of 100 x 50 pixels, which
    fills it: the whole and two tiles, one below the other.
    """

    side: int
    canvases: tuple[Size, ...]

    def cut(self, picture: torch.Tensor, shown: Size, interpolation: Interpolation) -> torch.Tensor:
        whole = resize_frames(picture, (self.side, self.side), interpolation=interpolation)
        height, width = self.canvas(shown)
        inner = fit_inside(shown, (height, width))
        top, left = (height - inner[0]) // 2, (width - inner[1]) // 2
        resized = resize_frames(picture, inner, interpolation=interpolation)
        padded = F.pad(resized, (left, width - inner[1] - left, top, height - inner[0] - top))
        return torch.cat((whole[None], cut_squares(padded, self.side)))

    def canvas(self, shown: Size) -> Size:
        """The canvas that keeps most of the picture's pixels, and of those the one that wastes fewest."""
        height, width = shown
        best, best_rank = self.canvases[0], (0, -math.inf)
        for canvas in self.canvases:
            scale = min(canvas[1] / width, canvas[0] / height)
            kept = min(int(width * scale) * int(height * scale), width * height)
            rank = (kept, -(canvas[0] * canvas[1] - kept))
            if rank > best_rank:
                best, best_rank = canvas, rank
        return best


def fit_longest_edge(size: Size, longest_edge: int) -> Size:
    """Keep the shape, up or down: the longer side becomes `longest_edge`, the other is rounded up to an even number.

    Worked example: (64, 190) to 100 gives 100 / 2.97 = 33.7, so (34, 100); (720, 1280) to 512 gives (288, 512).
    """
    height, width = size
    aspect = width / height
    if width >= height:
        width, height = longest_edge, _even(int(longest_edge / aspect))
    else:
        height, width = longest_edge, _even(int(longest_edge * aspect))
    return max(height, 1), max(width, 1)


def fit_inside(size: Size, canvas: Size) -> Size:
    """The largest (height, width) of the same shape, up or down, inside a canvas; fractions are rounded up."""
    by_height, by_width = canvas[0] / size[0], canvas[1] / size[1]
    if by_width < by_height:
        return min(math.ceil(size[0] * by_width), canvas[0]), canvas[1]
    return canvas[0], min(math.ceil(size[1] * by_height), canvas[1])


def cut_squares(canvas: torch.Tensor, side: int) -> torch.Tensor:
    """(3, rows * side, columns * side) to (rows * columns, 3, side, side), row by row."""
    rows, columns = canvas.shape[1] // side, canvas.shape[2] // side
    tiles = canvas.reshape(3, rows, side, columns, side)
    return tiles.permute(1, 3, 0, 2, 4).flatten(0, 1)


def _even(pixels: int) -> int:
    return pixels + pixels % 2
