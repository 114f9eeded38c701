"""Owns how a coloured shape looks: its outline, and a smooth picture of it at any place. Knows nothing of scenes."""

from __future__ import annotations

from functools import cache
from math import cos, pi, sin

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

RGB = tuple[int, int, int]
COLORS: dict[str, RGB] = {
    "red": (220, 40, 40),
    "green": (40, 170, 60),
    "blue": (45, 80, 220),
    "yellow": (240, 215, 50),
    "purple": (150, 60, 190),
    "orange": (245, 140, 30),
    "white": (245, 245, 245),
    "black": (20, 20, 20),
}
SHAPES = ("circle", "square", "triangle", "star")
OVERSAMPLE = 4


def draw_shape(draw: ImageDraw.ImageDraw, shape: str, center: tuple[float, float], radius: float, fill: int) -> None:
    """Fill one shape; center and radius in pixels."""
    x, y = center
    match shape:
        case "circle":
            draw.ellipse([x - radius, y - radius, x + radius, y + radius], fill=fill)
        case "square":
            side = radius * 0.88
            draw.rectangle([x - side, y - side, x + side, y + side], fill=fill)
        case "triangle":
            draw.polygon([(x, y - radius), (x - radius, y + radius * 0.85), (x + radius, y + radius * 0.85)], fill=fill)
        case "star":
            draw.polygon(_star_points(x, y, radius), fill=fill)
        case _:
            raise ValueError(f"shape must be one of {SHAPES}, got {shape!r}")


def _star_points(x: float, y: float, radius: float) -> list[tuple[float, float]]:
    points = []
    for corner in range(10):
        angle, reach = -pi / 2 + corner * pi / 5, radius * (1.1 if corner % 2 == 0 else 0.45)
        points.append((x + reach * cos(angle), y + reach * sin(angle)))
    return points


@cache
def _sprite(shape: str, half_radii: int, left: int, top: int) -> npt.NDArray[np.float32]:
    """(side, side, 1) cover of each pixel, 0..1, with a margin: radius half_radii / 2, moved right and down by left and
    top quarters of a pixel."""
    radius = half_radii / 2
    side = sprite_side(half_radii)
    mask = Image.new("L", (side * OVERSAMPLE, side * OVERSAMPLE), 0)
    middle = (side - 1) * OVERSAMPLE / 2
    draw_shape(ImageDraw.Draw(mask), shape, (middle + left, middle + top), radius * OVERSAMPLE, 255)
    return np.asarray(mask.reduce(OVERSAMPLE), dtype=np.float32)[..., None] / np.float32(255)


def sprite_side(half_radii: int) -> int:
    """Pixels of a sprite's side: the shape, a margin, and one pixel to move in."""
    return int(2 * (half_radii / 2 * 1.15 + 3)) + 1


def paste_shape(
    frame: npt.NDArray[np.float32], shape: str, center: tuple[float, float], radius: float, color: RGB
) -> None:
    """Blend one shape into frame (H, W, 3), smooth at its edge, to a quarter of a pixel; outside is cut off."""
    half_radii = round(radius * 2)
    side = sprite_side(half_radii)
    quarters = [round((at - (side - 1) / 2) * OVERSAMPLE) for at in center]
    x, y = (quarter // OVERSAMPLE for quarter in quarters)
    cover = _sprite(shape, half_radii, quarters[0] % OVERSAMPLE, quarters[1] % OVERSAMPLE)
    rows = slice(max(y, 0), min(y + side, frame.shape[0]))
    columns = slice(max(x, 0), min(x + side, frame.shape[1]))
    if rows.start >= rows.stop or columns.start >= columns.stop:
        return
    cover = cover[rows.start - y : rows.stop - y, columns.start - x : columns.stop - x]
    part = frame[rows, columns]
    part += (np.array(color, dtype=np.float32) - part) * cover
