"""Write the sample clips that this project draws itself, and the answers to what can be asked about them.

    python -m demo.samples [FOLDER]

Owns five stories, each for one thing that pruning must see: a crossing, a turn and a leaving, a slow fade, a cut, a
pan. The last two are outside what the demo model was trained on, so they have no answers.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np

from demo.mp4 import Frames, encode_mp4
from demo.questions import ask_all, describe
from demo.render import Filming, render_scene
from demo.scenes import Scene, Thing

FOLDER = Path(__file__).parents[1] / "sample_videos"
FRAMES, HEIGHT, WIDTH = 16, 128, 160
CRF = 18
PAN_STEP = 4
"""Pixels a frame."""
NOISE = 1.5
Point = tuple[float, float]


def _still(color: str, shape: str, at: Point) -> Thing:
    return Thing(color=color, shape=shape, radius=19, act="still", start=at, end=at)


def _mover(color: str, shape: str, start: Point, end: Point, direction: str) -> Thing:
    return Thing(color=color, shape=shape, radius=19, act="move", start=start, end=end, direction=direction)


def _scene(*things: Thing, frames: int = FRAMES, width: int = WIDTH) -> Scene:
    return Scene(things=things, frames=frames, height=HEIGHT, width=width)


BLUE_SQUARE = _still("blue", "square", (78, 54))
PASSES = replace(
    _scene(
        _mover("yellow", "star", (26, 50), (134, 50), "left to right"),
        BLUE_SQUARE,
        _still("black", "circle", (60, 104)),
    ),
    passing=("behind", BLUE_SQUARE),
)
TURNS = _scene(
    replace(_still("green", "triangle", (40, 40)), act="turn", slot=3, becomes="purple"),
    replace(_still("red", "circle", (118, 84)), act="disappear", slot=6),
)
FADE = _scene(_mover("orange", "square", (110, 108), (110, 24), "up"), _still("white", "circle", (38, 62)))
STORIES: dict[str, tuple[Scene, Filming]] = {
    "passes.mp4": (PASSES, Filming(noise=NOISE)),
    "turns.mp4": (TURNS, Filming(noise=NOISE)),
    "fade.mp4": (FADE, Filming(noise=NOISE, light=(1.15, 0.75))),
}


def draw_story(name: str) -> Frames:
    """One of STORIES: the ground and the noise are drawn from its name."""
    scene, filming = STORIES[name]
    return render_scene(random.Random(name), scene, filming)


def draw_cut() -> Frames:
    """Four seconds of one scene, then four of another."""
    half, filming = FRAMES // 2, Filming(noise=NOISE)
    before = _scene(_still("red", "star", (48, 64)), frames=half)
    after = _scene(_still("green", "circle", (112, 40)), _still("white", "square", (60, 92)), frames=half)
    return np.concatenate(
        [render_scene(random.Random(seed), scene, filming) for seed, scene in ((2, before), (5, after))]
    )


def draw_pan() -> Frames:
    """The camera turns to the right over a scene that stands still."""
    wide = WIDTH + PAN_STEP * (FRAMES - 1)
    scene = _scene(_still("blue", "circle", (60, 84)), _still("yellow", "triangle", (170, 48)), width=wide)
    frames = render_scene(random.Random("pan"), scene, Filming(noise=NOISE))
    return np.stack([frame[:, at * PAN_STEP : at * PAN_STEP + WIDTH] for at, frame in enumerate(frames)])


def answer_story(name: str) -> dict[str, str]:
    """The true answer to each question about one of STORIES."""
    scene, _ = STORIES[name]
    asked = ask_all(random.Random(name), scene)
    return {"Describe the video.": describe(scene), **{question.text: question.answer for question in asked}}


def write_samples(folder: Path) -> None:
    """The five clips, and their entries in answers.json beside those that are there."""
    clips = {name: draw_story(name) for name in STORIES} | {"cut.mp4": draw_cut(), "pan.mp4": draw_pan()}
    for name, frames in clips.items():
        (folder / name).write_bytes(encode_mp4(frames, crf=CRF))
    path = folder / "answers.json"
    answers = json.loads(path.read_text()) if path.exists() else {}
    answers |= {name: answer_story(name) for name in STORIES}
    path.write_text(json.dumps(answers, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    write_samples(parser.parse_args().folder)


if __name__ == "__main__":
    main()
