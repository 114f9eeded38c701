"""Owns what each cell of a clip shows, as targets for training the tower: they are dropped with the heads that learn
them. Knows nothing of models.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from demo.scenes import DIRECTIONS, Scene, Side, Thing
from demo.shapes import COLORS, SHAPES, draw_shape

CELL = 32
POINTS = 8
UNCLEAR = -100
NO_COLOR, NO_SHAPE, NO_EVENT = len(COLORS), len(SHAPES), 0
EVENTS = ("nothing", "still", *DIRECTIONS, "appear", "disappear", "turn")
SIDES: tuple[Side, ...] = ("behind", "in front of")
CLEAR_SHARE, FAINT_SHARE = 0.2, 0.02
"""A cell shows a thing that covers more than a fifth of what the thing covers at all; what covers less than a fiftieth
does not count, and between the two no target is given."""
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CellLabels:
    """color (T, P): 0-7, 8 for none. shape (T, P): 0-3, 4 for none. event (T, P): a place in EVENTS; slot 0 has none to
    see. named_color, named_shape (T, P): the look by which the thing is called, which a turn does not change, also
    where it has just disappeared; no colour is given behind a turn's slot, which only memory could tell. past (T, P):
    of a passing pair, where its two overlap, which of SIDES. slot (T, P): T's own number wherever those are given.
    third (T, P): of the picture, 0-8 in reading order, where the thing's centre lies. outline (T, P, 64) uint8: 8 x 8
    points, 255 where a thing covers the ground. UNCLEAR where there is no answer.

    Worked example: one cell of a 64 x 64 picture with a still red circle of radius 12 around (16, 16): cell 0 has
    color 0, shape 0, event 1 from slot 1 on, third 0; the other cells color 8, shape 4, event 0, third UNCLEAR.
    """

    color: Ints
    shape: Ints
    event: Ints
    named_color: Ints
    named_shape: Ints
    past: Ints
    slot: Ints
    third: Ints
    outline: npt.NDArray[np.uint8]


def label_cells(scene: Scene) -> CellLabels:
    """The labels of a scene, halfway through each slot."""
    painted = [_paint(scene, slot) for slot in range(scene.slots)]
    ids = _cut(np.stack(painted), CELL)  # (T, P, 32 * 32)
    shape = ids.shape[:2]
    color, form = np.full(shape, NO_COLOR), np.full(shape, NO_SHAPE)
    event, third, most = np.full(shape, NO_EVENT), np.full(shape, UNCLEAR), np.zeros(shape)
    named = np.full(shape, 0)  # 0 for the ground, a thing's number where it is, or was the slot before
    event[0] = UNCLEAR
    for number, thing in enumerate(scene.things, start=1):
        share = (ids == number).sum(-1) / _area(thing)
        clear, faint = (share > CLEAR_SHARE) & (share > most), (share > FAINT_SHARE) & (most <= CLEAR_SHARE)
        for slot in range(scene.slots):
            here = clear[slot]
            for target in (color, form, event):
                target[slot][faint[slot] & ~here] = UNCLEAR
            named[slot][faint[slot] & ~here] = UNCLEAR
            named[slot][here] = number
            color[slot][here] = list(COLORS).index(thing.color_in(slot))
            form[slot][here] = SHAPES.index(thing.shape)
            third[slot][here] = _third(thing, scene, slot)
            if slot:
                event[slot][here] = _event_of(thing, slot)
        most = np.maximum(most, share)
        if thing.act == "disappear":
            event[thing.slot][clear[thing.slot - 1]] = EVENTS.index("disappear")
            named[thing.slot][clear[thing.slot - 1]] = number
    outline = _cut(np.stack([_shrink(picture) for picture in painted]), POINTS)
    return CellLabels(
        color=color,
        shape=form,
        event=event,
        named_color=_first_color(scene, named),
        named_shape=_look_up(named, [SHAPES.index(thing.shape) for thing in scene.things], NO_SHAPE),
        past=_past(scene, named),
        slot=np.where(named > 0, np.arange(scene.slots)[:, None], UNCLEAR),
        third=third,
        outline=outline,
    )


def _first_color(scene: Scene, named: Ints) -> Ints:
    found = _look_up(named, [list(COLORS).index(thing.color) for thing in scene.things], NO_COLOR)
    slots = np.arange(scene.slots)[:, None]
    for number, thing in enumerate(scene.things, start=1):
        if thing.act == "turn":
            found[(named == number) & (slots > thing.slot)] = UNCLEAR
    return found


def _past(scene: Scene, named: Ints) -> Ints:
    """Which of SIDES, at the cells of a passing pair in slots where it overlaps."""
    out = np.full(named.shape, UNCLEAR)
    if scene.passing is None:
        return out
    side, other = scene.passing
    pair = [number for number, thing in enumerate(scene.things, start=1) if thing in (scene.mover, other)]
    for slot in range(scene.slots):
        if scene.is_crossing(slot):
            out[slot][np.isin(named[slot], pair)] = SIDES.index(side)
    return out


def _look_up(named: Ints, values: list[int], none: int) -> Ints:
    """Each thing's value where its number stands, `none` on the ground."""
    found: Ints = np.where(named >= 0, np.array([none, *values])[np.maximum(named, 0)], UNCLEAR)
    return found


def _paint(scene: Scene, slot: int) -> npt.NDArray[np.uint8]:
    """(H, W): the number of the thing on top, counted from 1; 0 for the ground."""
    picture = Image.new("L", (scene.width, scene.height))
    draw = ImageDraw.Draw(picture)
    for number, thing in enumerate(scene.things, start=1):
        if thing.is_seen(slot):
            draw_shape(draw, thing.shape, thing.place(scene.halfway(slot)), thing.radius, number)
    return np.asarray(picture)


def _shrink(picture: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """(H / 4, W / 4): how much of each 4 x 4 block is covered, 0..255."""
    return np.asarray(Image.fromarray(np.where(picture > 0, 255, 0).astype(np.uint8)).reduce(CELL // POINTS))


def _cut(pictures: npt.NDArray[np.uint8], side: int) -> npt.NDArray[np.uint8]:
    """(T, H, W) to (T, P, side * side)."""
    slots, height, width = pictures.shape
    tiles = pictures.reshape(slots, height // side, side, width // side, side).swapaxes(2, 3)
    return tiles.reshape(slots, -1, side * side)


def _area(thing: Thing) -> float:
    """Square pixels, nearly."""
    return thing.radius**2 * {"circle": 3.14, "square": 3.1, "triangle": 1.85, "star": 1.45}[thing.shape]


def _third(thing: Thing, scene: Scene, slot: int) -> int:
    x, y = thing.place(scene.halfway(slot))
    column, row = np.digitize([x / scene.width, y / scene.height], [1 / 3, 2 / 3])
    return int(row * 3 + column)


def _event_of(thing: Thing, slot: int) -> int:
    if thing.act == "move":
        return EVENTS.index(thing.direction)
    happens = thing.act in ("appear", "turn") and slot == thing.slot
    return EVENTS.index(thing.act if happens else "still")
