"""Owns the clips that the demo model is judged on: of a seed that training never draws, written as real mp4 files.
Knows nothing of engines.

Thirty in a hundred show the simple mix, the others everything; thirty in a hundred are longer than any clip in
training, thirty have twice its sides. H.264, 4:2:0, crf 23, 2 pictures a second.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from demo.draws import SIZES
from demo.mp4 import encode_mp4
from demo.questions import Question, ask_all, ask_description
from demo.render import Filming, draw_filming, render_scene
from demo.scenes import Scene
from demo.stage import Level, make_scene

SEED = 20_261_130
LENGTHS, LONGER = (8, 8, 10, 12, 16, 20), 24
CRF = 23
QUESTIONS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """One clip and what is asked about it; the description comes last."""

    number: int
    scene: Scene
    filming: Filming
    questions: tuple[Question, ...]
    data: bytes

    @property
    def description(self) -> str:
        return self.questions[-1].answer

    def write(self, folder: Path) -> Path:
        path = folder / f"{self.number:04d}.mp4"
        path.write_bytes(self.data)
        return path


def make_clip(number: int, *, seed: int = SEED) -> HeldOut:
    """The clip of this number; every call makes the same one."""
    rng = random.Random(f"held out {seed}/{number}")
    level: Level = "simple" if rng.random() < 0.3 else "all"
    frames = LONGER if rng.random() < 0.3 else rng.choice(LENGTHS)
    scale = 2 if rng.random() < 0.3 else 1
    height, width = rng.choice(SIZES)
    scene = make_scene(rng, level, frames=frames, height=height * scale, width=width * scale)
    filming = draw_filming(rng)
    pixels = render_scene(rng, scene, filming)
    asked = ask_all(rng, scene)
    chosen = rng.sample(asked, min(QUESTIONS - 1, len(asked)))
    questions = (*chosen, ask_description(rng, scene))
    return HeldOut(number=number, scene=scene, filming=filming, questions=questions, data=encode_mp4(pixels, crf=CRF))
