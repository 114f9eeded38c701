"""Live scenes for bench/realtime.py: coloured shapes on a plain ground, one of which appears at a known time.
Owns the pictures and their answers; knows no server."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

SIZE = (128, 160)
COLOURS = {
    "red": (210, 40, 40), "green": (40, 160, 60), "blue": (50, 70, 210), "yellow": (230, 210, 50),
    "purple": (140, 60, 170), "orange": (235, 140, 40), "black": (20, 20, 20),
}  # fmt: skip
SHAPES = ("circle", "square", "triangle")
GROUND = (200, 205, 210)
SIDE = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """`text` says what happens at event_s; before it the first shape alone stands still or moves."""

    seed: int
    duration_s: float
    event_s: float
    text: str

    def picture(self, time_s: float) -> bytes:
        """The scene at a time, as JPEG."""
        random = np.random.default_rng(self.seed)
        first, second = _draw_names(random)
        image = Image.new("RGB", (SIZE[1], SIZE[0]), GROUND)
        places = random.permutation(4)[:2]
        for (colour, shape), place, begins_s in ((first, places[0], 0.0), (second, places[1], self.event_s)):
            if time_s >= begins_s:
                _draw(ImageDraw.Draw(image), COLOURS[colour], shape, (15 + 75 * (place % 2), 15 + 60 * (place // 2)))
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=90)
        return buffer.getvalue()


def make_scene(seed: int, *, duration_s: float) -> Scene:
    random = np.random.default_rng(seed)
    _, (colour, shape) = _draw_names(random)
    event_s = float(np.random.default_rng(seed + 10_000).uniform(0.25, 0.75) * duration_s)
    return Scene(seed=seed, duration_s=duration_s, event_s=event_s, text=f"A {colour} {shape} appears.")


def static_picture(seed: int) -> bytes:
    """The first shape alone."""
    return Scene(seed=seed, duration_s=1.0, event_s=float("inf"), text="").picture(0.0)


def _draw_names(random: np.random.Generator) -> tuple[tuple[str, str], tuple[str, str]]:
    colours = random.permutation(sorted(COLOURS))[:2]
    shapes = random.permutation(SHAPES)[:2]
    return (str(colours[0]), str(shapes[0])), (str(colours[1]), str(shapes[1]))


def _draw(draw: ImageDraw.ImageDraw, colour: tuple[int, int, int], shape: str, at: tuple[int, int]) -> None:
    left, top = at
    box = (left, top, left + SIDE, top + SIDE)
    match shape:
        case "circle":
            draw.ellipse(box, fill=colour)
        case "square":
            draw.rectangle(box, fill=colour)
        case _:
            draw.polygon([(left + SIDE // 2, top), (left, top + SIDE), (left + SIDE, top + SIDE)], fill=colour)
