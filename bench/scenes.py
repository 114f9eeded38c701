"""Live scenes for bench/realtime.py: coloured shapes on a plain ground, one of which appears at a known time.
Owns the pictures and their answers; knows no server."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Literal

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
STEP = 6  # pixels a second that a moving scene's first shape goes

SceneKind = Literal["event", "static", "moving"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A shape stands from the start; two others appear, one early and one late. One of the two is `asked` for."""

    seed: int
    duration_s: float
    events_s: tuple[float, float]
    asked: int

    @property
    def event_s(self) -> float:
        return self.events_s[self.asked]

    @property
    def text(self) -> str:
        """What happens at event_s."""
        return self._say(self.asked)

    @property
    def other_text(self) -> str:
        """What happens at the other time: asked for this, nobody should find event_s."""
        return self._say(1 - self.asked)

    def picture(self, time_s: float, kind: SceneKind = "event") -> bytes:
        """The scene at a time, as JPEG. static: the first shape alone; moving: it goes round and round for ever."""
        image = Image.new("RGB", (SIZE[1], SIZE[0]), GROUND)
        for (colour, shape), place, begins_s in zip(*_cast(self.seed), (0.0, *self.events_s), strict=True):
            left, top = 15 + 75 * (place % 2), 15 + 60 * (place // 2)
            if begins_s == 0 and kind == "moving":
                left = int(left + STEP * time_s) % (SIZE[1] - SIDE)
            if begins_s == 0 or (time_s >= begins_s and kind != "static"):
                _draw(ImageDraw.Draw(image), COLOURS[colour], shape, (left, top))
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=90)
        return buffer.getvalue()

    def _say(self, event: int) -> str:
        colour, shape = _cast(self.seed)[0][1 + event]
        return f"A {colour} {shape} appears."


def make_scene(seed: int, *, duration_s: float) -> Scene:
    random = np.random.default_rng(seed + 1_000_000)
    early, late = random.uniform(0.15, 0.45), random.uniform(0.55, 0.85)
    times = (float(early * duration_s), float(late * duration_s))
    return Scene(seed=seed, duration_s=duration_s, events_s=times, asked=int(random.integers(2)))


def _cast(seed: int) -> tuple[list[tuple[str, str]], list[int]]:
    """The colour and shape of each of three, and the quarter of the picture it stands in."""
    random = np.random.default_rng(seed)
    names = zip(random.permutation(sorted(COLOURS))[:3].tolist(), random.permutation(SHAPES).tolist(), strict=True)
    return list(names), random.permutation(4)[:3].tolist()


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
