"""Owns the drawing of lots: which things a scene has, what they do and where they stand, by level of difficulty.
Knows nothing of rendering or questions.
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations
from typing import Literal

import numpy as np

from demo.scenes import DIRECTIONS, FRAMES_PER_SLOT, TIMED, Act, Scene, Side, Thing
from demo.shapes import COLORS, SHAPES

Level = Literal["still", "motion", "simple", "all", "events", "crossings"]
"""One picture; one simple motion; the prototype's mix; colour changes, crossings and several events as well; scenes
with timed events only, most of them with two; something that passes another thing, always."""
LEVELS: tuple[Level, ...] = ("still", "motion", "simple", "all", "events", "crossings")
TRIES = 50
RADII: dict[Level, tuple[float, float]] = {
    "still": (0.12, 0.22),
    "motion": (0.11, 0.19),
    "simple": (0.11, 0.165),
    "all": (0.11, 0.165),
    "events": (0.11, 0.165),
    "crossings": (0.11, 0.165),
}
CROSSING: dict[Level, float] = {"all": 0.75, "crossings": 1.0}
"""How often something that moves beside something that stays passes it."""
Point = tuple[float, float]


def make_scene(rng: random.Random, level: Level, *, frames: int, height: int, width: int) -> Scene:
    """A scene of one to three things, each of another look, at most one of them moving."""
    while True:
        acts = _draw_acts(rng, level, slots=frames // FRAMES_PER_SLOT)
        crosses = level in CROSSING and acts[:2] == ["move", "still"] and rng.random() < CROSSING[level]
        things = _place_things(rng, acts, size=(height, width), radii=RADII[level], crosses=crosses)
        if things is not None:
            break
    timed = _draw_times(rng, things, slots=frames // FRAMES_PER_SLOT)
    if not crosses:
        rng.shuffle(timed)
        return Scene(things=tuple(timed), frames=frames, height=height, width=width)
    side: Side = rng.choice(("behind", "in front of"))
    mover, other, *rest = timed
    order = (mover, other, *rest) if side == "behind" else (other, mover, *rest)
    return Scene(things=order, frames=frames, height=height, width=width, passing=(side, other))


def _draw_acts(rng: random.Random, level: Level, *, slots: int) -> list[Act]:
    if level == "still" or slots < 2:
        return ["still"] * rng.choice((1, 1, 2))
    if level == "motion":
        count = rng.choice((1, 1, 2))
        return _one_mover([rng.choice(("move", "move", "still")) for _ in range(count)])
    if level == "crossings":
        return ["move", "still", *([rng.choice(("still", *TIMED))] if rng.random() < 0.35 else [])]
    share = {"all": rng.random, "events": lambda: rng.uniform(0.65, 1.0)}.get(level, lambda: 0.0)()
    if share < 0.4 or slots < 4:
        count = rng.choice((1, 1, 2, 2, 2, 3))
        return _one_mover([rng.choice(("move", "move", "move", "still", "appear", "disappear")) for _ in range(count)])
    if share < 0.65:
        extra: list[Act] = [rng.choice(("still", *TIMED))] if rng.random() < 0.35 else []
        return ["move", "still", *extra]
    if share < 0.85:
        extra = [rng.choice(("move", "still", *TIMED))] if rng.random() < 0.35 else []
        return [rng.choice(TIMED), rng.choice(TIMED), *extra]
    return ["turn", *(rng.choice(("move", "still")) for _ in range(rng.choice((0, 1, 1))))]


def _one_mover(acts: list[Act]) -> list[Act]:
    """All movers but the first stay still instead."""
    first = acts.index("move") if "move" in acts else -1
    return ["still" if act == "move" and place != first else act for place, act in enumerate(acts)]


def _place_things(
    rng: random.Random, acts: list[Act], *, size: tuple[int, int], radii: tuple[float, float], crosses: bool
) -> list[Thing] | None:
    """Looks and paths, far from each other at all times but for a crossing pair; None when that did not work out."""
    looks = rng.sample([(color, shape) for color in COLORS for shape in SHAPES], len(acts))
    if crosses and looks[0][0] == looks[1][0]:
        return None  # who is in front could not be seen
    things: list[Thing] = []
    for number, (act, (color, shape)) in enumerate(zip(acts, looks, strict=True)):
        radius = rng.uniform(*radii) * min(size)
        for _ in range(TRIES):
            direction, start, end = _draw_path(rng, act, size)
            if crosses and number == 1:
                start = end = _on_the_way(rng, things[0])
            thing = Thing(color=color, shape=shape, radius=radius, act=act, start=start, end=end, direction=direction)
            others = things[1:] if crosses and number == 1 else things
            if all(_are_apart(thing, other) for other in others):
                things.append(thing)
                break
        else:
            return None
    return things


def _draw_path(rng: random.Random, act: Act, size: tuple[int, int]) -> tuple[str, Point, Point]:
    """(direction, start, end): across the picture for a mover, one place for all others."""
    height, width = size
    if act != "move":
        place = (rng.uniform(0.15, 0.85) * width, rng.uniform(0.15, 0.85) * height)
        return "", place, place
    direction = rng.choice(tuple(DIRECTIONS))
    dx, dy = DIRECTIONS[direction]
    low, high, cross = 0.13 + rng.uniform(0, 0.15), 0.87 - rng.uniform(0, 0.15), rng.uniform(0.18, 0.82)
    first, last = (low, high) if dx + dy > 0 else (high, low)
    if dx:
        return direction, (first * width, cross * height), (last * width, cross * height)
    return direction, (cross * width, first * height), (cross * width, last * height)


def _on_the_way(rng: random.Random, mover: Thing) -> Point:
    """A place in the middle of the mover's path, less than half a radius beside it."""
    x, y = mover.place(rng.uniform(0.35, 0.65))
    aside = rng.uniform(-0.4, 0.4) * mover.radius
    return (x, y + aside) if DIRECTIONS[mover.direction][0] else (x + aside, y)


def _are_apart(one: Thing, other: Thing) -> bool:
    """Never nearer than 1.3 times both radii."""
    reach = 1.3 * (one.radius + other.radius)
    for progress in np.linspace(0, 1, 9):
        (x0, y0), (x1, y1) = one.place(progress), other.place(progress)
        if (x0 - x1) ** 2 + (y0 - y1) ** 2 < reach**2:
            return False
    return True


def _draw_times(rng: random.Random, things: list[Thing], *, slots: int) -> list[Thing]:
    """Timed acts get slots of their own after slot 0, turns a colour that leaves all looks different."""
    timed = [thing for thing in things if thing.act in TIMED]
    times = dict(zip(timed, rng.sample(range(1, slots), len(timed)) if timed else [], strict=True))
    done: list[Thing] = []
    for thing in things:
        becomes = ""
        if thing.act == "turn":
            taken = {look for other in (*things, *done) for look in other.looks}
            becomes = rng.choice([color for color in COLORS if (color, thing.shape) not in taken])
        done.append(replace(thing, slot=times.get(thing, 0), becomes=becomes))
    assert all(not set(a.looks) & set(b.looks) for a, b in combinations(done, 2))
    return done
