"""How a decoded picture is turned to stand upright: display matrices.

Knows nothing of where the matrix is stored (the container or the picture itself) beyond FFmpeg's side data.
"""

from __future__ import annotations

import struct
from typing import Literal, cast

import numpy as np
import numpy.typing as npt
from av.buffer import Buffer
from av.sidedata.sidedata import SideDataContainer
from av.video.frame import VideoFrame

Pixels = npt.NDArray[np.uint8]
# How the rows and columns of the shown picture are read out of the stored one.
Orientation = Literal["as_stored", "rot90", "rot180", "rot270", "flip_x", "flip_y", "transpose", "anti_transpose"]

# (x right, x down, y right, y down) of the shown axes for a unit step in the stored x and y, rounded to whole numbers.
_ORIENTATIONS: dict[tuple[int, int, int, int], Orientation] = {
    (1, 0, 0, 1): "as_stored",
    (0, 1, -1, 0): "rot90",
    (-1, 0, 0, -1): "rot180",
    (0, -1, 1, 0): "rot270",
    (-1, 0, 0, 1): "flip_x",
    (1, 0, 0, -1): "flip_y",
    (0, 1, 1, 0): "transpose",
    (0, -1, -1, 0): "anti_transpose",
}

QUARTER_TURNS: frozenset[Orientation] = frozenset({"rot90", "rot270", "transpose", "anti_transpose"})


def read_orientation(frame: VideoFrame) -> Orientation:
    """The orientation nearest to the frame's display matrix; skewed matrices (33 degrees, say) are ignored."""
    matrix = cast("SideDataContainer", frame.side_data).get("DISPLAYMATRIX", b"")
    return parse_display_matrix(bytes(cast("Buffer", matrix)))


def parse_display_matrix(matrix: bytes) -> Orientation:
    """Read nine little-endian 16.16 numbers (a b u, c d v, x y w): shown = (a x + c y, b x + d y)."""
    if len(matrix) != 36:
        return "as_stored"
    a, b, _, c, d, *_ = struct.unpack("<9i", matrix)
    scale = max(abs(a), abs(b), abs(c), abs(d))
    if scale == 0 or any(0.05 < abs(value / scale) < 0.95 for value in (a, b, c, d)):
        return "as_stored"
    return _ORIENTATIONS.get((round(a / scale), round(b / scale), round(c / scale), round(d / scale)), "as_stored")


def turn_upright(pixels: Pixels, orientation: Orientation) -> Pixels:
    """(h, w, 3) as stored -> as shown; a view where numpy can give one. rot90 is clockwise."""
    match orientation:
        case "as_stored":
            return pixels
        case "rot90":
            return np.rot90(pixels, k=-1)
        case "rot180":
            return pixels[::-1, ::-1]
        case "rot270":
            return np.rot90(pixels, k=1)
        case "flip_x":
            return pixels[:, ::-1]
        case "flip_y":
            return pixels[::-1]
        case "transpose":
            return pixels.transpose(1, 0, 2)
        case "anti_transpose":
            return pixels[::-1, ::-1].transpose(1, 0, 2)
