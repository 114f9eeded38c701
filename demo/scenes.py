"""Owns what happens in a clip: things that stay, move, appear, disappear, change colour, or pass behind one another.
Knows nothing of pixels beyond sizes, and nothing of words beyond names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Act = Literal["still", "move", "appear", "disappear", "turn"]
Side = Literal["behind", "in front of"]
TIMED: tuple[Act, ...] = ("appear", "disappear", "turn")
DIRECTIONS: dict[str, tuple[int, int]] = {
    "left to right": (1, 0),
    "right to left": (-1, 0),
    "up": (0, -1),
    "down": (0, 1),
}
FRAMES_PER_SLOT = 2
FPS = 2.0
OVERLAP = 0.7
"""Two things this much nearer than both radii cover one another visibly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """One coloured shape and the one thing that it does.

    start, end: (x, y) pixels of its centre in the first and the last frame. direction: of a `move`, else "". slot: when
    a timed act happens, else 0. becomes: the colour after a `turn`, else "".
    """

    color: str
    shape: str
    radius: float
    act: Act
    start: tuple[float, float]
    end: tuple[float, float]
    direction: str = ""
    slot: int = 0
    becomes: str = ""

    @property
    def name(self) -> str:
        """What it is called, by its first colour."""
        return f"{self.color} {self.shape}"

    @property
    def looks(self) -> tuple[tuple[str, str], ...]:
        """(colour, shape) of all that it ever looks like."""
        return ((self.color, self.shape),) + (((self.becomes, self.shape),) if self.becomes else ())

    def place(self, progress: float) -> tuple[float, float]:
        """(x, y) pixels when this share of the clip is over."""
        (x0, y0), (x1, y1) = self.start, self.end
        return x0 + (x1 - x0) * progress, y0 + (y1 - y0) * progress

    def is_seen(self, slot: int) -> bool:
        match self.act:
            case "appear":
                return slot >= self.slot
            case "disappear":
                return slot < self.slot
            case _:
                return True

    def color_in(self, slot: int) -> str:
        return self.becomes if self.act == "turn" and slot >= self.slot else self.color


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A clip's story. things: in the order of painting, the last on top. passing: how the mover passes another thing,
    and which; None where it passes none. start: whole seconds at the first frame."""

    things: tuple[Thing, ...]
    frames: int
    height: int
    width: int
    passing: tuple[Side, Thing] | None = None
    start: int = 0

    def __post_init__(self) -> None:
        if self.frames < FRAMES_PER_SLOT or self.frames % FRAMES_PER_SLOT:
            raise ValueError(f"frames must be a positive multiple of {FRAMES_PER_SLOT}, got {self.frames}")

    @property
    def slots(self) -> int:
        return self.frames // FRAMES_PER_SLOT

    def time(self, slot: int) -> str:
        """Seconds of a slot, as the prompt and the answers write them."""
        return slot_time(slot, self.start)

    def is_crossing(self, slot: int) -> bool:
        """The mover and what it passes overlap halfway through the slot."""
        mover = self.mover
        if self.passing is None or mover is None:
            return False
        (x0, y0), (x1, y1) = (thing.place(self.halfway(slot)) for thing in (mover, self.passing[1]))
        reach = OVERLAP * (mover.radius + self.passing[1].radius)
        return bool((x0 - x1) ** 2 + (y0 - y1) ** 2 < reach**2)

    def halfway(self, slot: int) -> float:
        """The share of the clip that is over halfway through a slot."""
        return (FRAMES_PER_SLOT * slot + (FRAMES_PER_SLOT - 1) / 2) / (self.frames - 1)

    @property
    def mover(self) -> Thing | None:
        """The one thing that moves, if any."""
        return next((thing for thing in self.things if thing.act == "move"), None)

    @property
    def events(self) -> tuple[Thing, ...]:
        """Things with a timed act, by time."""
        return tuple(sorted((thing for thing in self.things if thing.act in TIMED), key=lambda thing: thing.slot))


def slot_time(slot: int, start: int = 0) -> str:
    """Seconds of a slot as the prompt writes them: the mean of its frames' times, one decimal.

    Worked example: slot 6 holds the frames at 6.0 and 6.5 s: "6.2" (halves go to the even digit).
    """
    return f"{start + (FRAMES_PER_SLOT * slot + (FRAMES_PER_SLOT - 1) / 2) / FPS:.1f}"
