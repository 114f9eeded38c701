"""Scenes keep their promises: things look different, stay apart, do one thing each, and are drawn where they say."""

from __future__ import annotations

import random
from itertools import combinations

import numpy as np
import pytest

from demo.render import Filming, draw_filming, render_scene
from demo.scenes import TIMED, Scene, Thing, slot_time
from demo.shapes import COLORS
from demo.stage import LEVELS, Level, make_scene

STEADY = Filming()


def thing(**fields: object) -> Thing:
    values = {"color": "red", "shape": "square", "radius": 12.0, "act": "still", "start": (32.0, 32.0)}
    values |= {"end": fields.get("start", values["start"]), **fields}
    return Thing(**values)  # type: ignore[arg-type]


def scene(*things: Thing, frames: int = 8, **fields: object) -> Scene:
    return Scene(things=things, frames=frames, height=64, width=96, **fields)  # type: ignore[arg-type]


def colour_at(frame: np.ndarray, x: int, y: int) -> str:
    """The nearest of the colours."""
    return min(COLORS, key=lambda name: np.abs(frame[y, x].astype(int) - COLORS[name]).sum())


@pytest.mark.parametrize("level", LEVELS)
def test_things_look_different_and_stay_apart(level: Level) -> None:
    """One mover at most; no look twice; timed acts at times of their own; only a passing pair ever touches."""
    rng, passing = random.Random(3), 0
    for _ in range(150):
        one = make_scene(rng, level, frames=16, height=128, width=160)
        assert 1 <= len(one.things) <= 3 and sum(thing.act == "move" for thing in one.things) <= 1
        looks = [look for thing in one.things for look in thing.looks]
        assert len(set(looks)) == len(looks)
        times = [thing.slot for thing in one.events]
        assert len(set(times)) == len(times) and all(0 < slot < one.slots for slot in times)
        touching = [
            pair
            for pair in combinations(one.things, 2)
            if any(np.hypot(*np.subtract(pair[0].place(at), pair[1].place(at))) < pair[0].radius + pair[1].radius
                   for at in np.linspace(0, 1, 33))
        ]  # fmt: skip
        if one.passing is not None:
            passing += 1
            assert one.mover in touching[0] and one.passing[1] in touching[0]
        assert len(touching) == (one.passing is not None)
    assert passing == 150 if level == "crossings" else (passing > 0) is (level == "all")


def test_levels_rise() -> None:
    """Stills first, then one motion, then things that come and go, then turns as well; timed events for themselves, and
    things that pass others."""
    rng = random.Random(0)
    acts = {
        level: {t.act for _ in range(100) for t in make_scene(rng, level, frames=8, height=96, width=96).things}
        for level in LEVELS
    }
    assert acts["still"] == {"still"}
    assert acts["motion"] == {"still", "move"}
    assert acts["simple"] == {"still", "move", "appear", "disappear"}
    assert acts["all"] == acts["crossings"] == {"still", "move", *TIMED}
    assert set(TIMED) <= acts["events"]


def test_a_seed_means_a_clip() -> None:
    """The same seed draws the same story and the same pixels, another seed others."""

    def draw(seed: int) -> tuple[Scene, np.ndarray]:
        rng = random.Random(seed)
        one = make_scene(rng, "all", frames=8, height=96, width=128)
        return one, render_scene(rng, one, draw_filming(rng))

    (story, pixels), (again, same), (other, _) = draw(5), draw(5), draw(6)
    assert story == again and np.array_equal(pixels, same)
    assert story != other


def test_acts_are_seen() -> None:
    """What appears is there from its slot on, what disappears until its slot, what turns has its new colour from it."""
    rng = random.Random(0)
    story = scene(
        thing(act="appear", slot=2, start=(20.0, 20.0)),
        thing(act="disappear", slot=1, color="blue", start=(50.0, 44.0)),
        thing(act="turn", slot=3, color="green", becomes="white", start=(78.0, 20.0)),
    )
    frames = render_scene(rng, story, STEADY)
    assert [colour_at(frame, 20, 20) == "red" for frame in frames] == [False] * 4 + [True] * 4
    assert [colour_at(frame, 50, 44) == "blue" for frame in frames] == [True] * 2 + [False] * 6
    assert [colour_at(frame, 78, 20) for frame in frames] == ["green"] * 6 + ["white"] * 2


@pytest.mark.parametrize(("side", "seen"), [("behind", "blue"), ("in front of", "red")])
def test_who_is_in_front_is_seen(side: str, seen: str) -> None:
    """Where mover and passed thing overlap, the one in front has the pixel."""
    mover = thing(act="move", direction="left to right", start=(10.0, 32.0), end=(86.0, 32.0))
    other = thing(color="blue", start=(48.0, 32.0))
    order = (mover, other) if side == "behind" else (other, mover)
    frames = render_scene(random.Random(0), scene(*order, frames=20, passing=(side, other)), STEADY)
    assert colour_at(frames[10], 49, 32) == seen


def test_filming_does_what_it_says() -> None:
    """Light scales, a camera shakes by whole pixels up to its most, noise has its sigma."""
    still = scene(thing())
    calm = render_scene(random.Random(1), still, STEADY).astype(float)
    assert np.ptp(calm, axis=0).max() == 0
    dark = render_scene(random.Random(1), still, Filming(light=(1.0, 0.5))).astype(float)
    assert np.abs(dark[-1] - calm[-1] / 2).max() <= 1
    shaken = render_scene(random.Random(1), still, Filming(shake=2)).astype(float)
    inner = shaken[:, 8:-8, 8:-8]
    shifts = [np.roll(calm[0], (y, x), (0, 1))[8:-8, 8:-8] for y in range(-2, 3) for x in range(-2, 3)]
    assert all(min(np.abs(frame - shift).max() for shift in shifts) == 0 for frame in inner)
    assert len({frame.tobytes() for frame in inner}) > 1
    noisy = render_scene(random.Random(1), still, Filming(noise=3.0)).astype(float)
    assert (noisy - calm).std() == pytest.approx(3.0, abs=0.1)


def test_times_are_those_of_the_prompt() -> None:
    """The worked example, and slot 0."""
    assert (slot_time(6), slot_time(0)) == ("6.2", "0.2")
    assert slot_time(6, start=9) == scene(thing(), start=9).time(6) == "15.2"


def test_odd_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 2, got 7"):
        scene(thing(), frames=7)
