"""Owns what one training step reads: a curriculum's draw of clips of one size, with questions and labels, all from a
seed and a step's number. Knows nothing of tokens or models.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import numpy as np

from demo.labels import CellLabels, label_cells
from demo.mp4 import Frames, decode_mp4, encode_mp4
from demo.questions import DESCRIBE_IMAGE, Question, ask_all, ask_description
from demo.render import draw_filming, render_scene
from demo.scenes import Scene
from demo.stage import LEVELS, Level, make_scene

SIZES = ((128, 128), (128, 128), (128, 160), (160, 128), (96, 160))
LENGTHS = (8, 8, 10, 12, 16, 20, 22, 22)
"""Pictures of a clip. What is hard in long clips is as hard in short ones, of which more fit into an hour."""
QUESTIONS, EASY = 10, 2
"""At most so many questions a clip, and of them so many that are not of a kind in URGENCY."""
CODEC_SHARE = 0.4
LATE_SHARE, LATEST = 0.35, 14
"""Clips that begin later than at 0 s, so that a time is read off the prompt and not counted, and when at most."""
CLIPS_FOR_ONE: dict[Level, float] = {"still": 2.0, "motion": 1.5}
"""Short clips come in larger batches; of all others one."""
URGENCY = {
    "when": 4.0, "disappears": 6.0, "appears": 5.0, "order": 5.0, "passes": 3.0, "becomes": 1.5, "changes": 4.0,
}  # fmt: skip
"""How much likelier a kind is asked about than the rest: rare kinds and those that are learnt late."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One clip. frames: (T, H, W, 3) uint8. questions: the description last. is_image: a
    picture rather than a clip, in one slot."""

    scene: Scene
    frames: Frames
    questions: tuple[Question, ...]
    labels: CellLabels
    is_image: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A share of training, its mix of LEVELS, and what targets beside the answers weigh: much while the tower learns to
    see; little later, when they are met and their gradients would drown those of the answers."""

    share: float
    mix: tuple[float, float, float, float, float, float]
    cells_weight: float = 0.25
    search_weight: float = 0.15
    looks_weight: float = 0.0


Curriculum = tuple[Stage, ...]
FROM_NOTHING: Curriculum = (
    Stage(share=0.12, mix=(1.0, 0.0, 0.0, 0.0, 0.0, 0.0)),
    Stage(share=0.18, mix=(0.35, 0.65, 0.0, 0.0, 0.0, 0.0)),
    Stage(share=0.25, mix=(0.1, 0.2, 0.7, 0.0, 0.0, 0.0), looks_weight=0.1),
    Stage(share=0.45, mix=(0.03, 0.05, 0.12, 0.4, 0.3, 0.1), cells_weight=0.05, search_weight=0.05, looks_weight=0.1),
)
"""Stills, one motion, the simple mix, everything. Without it a model stays with the language's own statistics."""
ONWARD: Curriculum = (
    Stage(share=1.0, mix=(0.01, 0.02, 0.12, 0.45, 0.3, 0.1), cells_weight=0.05, search_weight=0.05, looks_weight=0.1),
)
"""For a model that knows the simple mix."""

READOUT: Curriculum = (
    Stage(share=1.0, mix=(0.01, 0.02, 0.1, 0.45, 0.22, 0.2), cells_weight=0.05, search_weight=0.05, looks_weight=0.2),
)
"""For a decoder over a tower that sees well already: mostly what is read off several events."""


def find_stage(curriculum: Curriculum, progress: float) -> Stage:
    """The stage when this share of training is over."""
    reached = 0.0
    for stage in curriculum:
        reached += stage.share
        if progress < reached:
            return stage
    return curriculum[-1]


def draw_level(rng: random.Random, stage: Stage) -> Level:
    """The level of a step."""
    return rng.choices(LEVELS, weights=stage.mix)[0]


def draw_samples(rng: random.Random, level: Level, clips: int) -> list[Sample]:
    """Clips of one size and length; `clips` of the hardest levels, more of the easy ones."""
    if level == "still":
        frames, size = 2, rng.choice(((96, 96), (128, 128), (128, 160)))
    elif level == "motion":
        frames, size = rng.choice((4, 8)), rng.choice(((96, 96), (128, 128)))
    else:
        frames, size = rng.choice(LENGTHS), rng.choice(SIZES)
    is_coded = rng.random() < CODEC_SHARE
    is_image = level == "still" and rng.random() < 0.5
    count = int(clips * CLIPS_FOR_ONE.get(level, 1.0))
    return [draw_sample(rng, level, frames, size, is_coded=is_coded, is_image=is_image) for _ in range(count)]


def draw_sample(
    rng: random.Random, level: Level, frames: int, size: tuple[int, int], *, is_coded: bool, is_image: bool = False
) -> Sample:
    scene = make_scene(rng, level, frames=frames, height=size[0], width=size[1])
    if rng.random() < LATE_SHARE:
        scene = replace(scene, start=rng.randint(1, LATEST))
    pixels = render_scene(rng, scene, draw_filming(rng))
    if is_coded:
        pixels = decode_mp4(encode_mp4(pixels, crf=rng.choice((18, 23, 23, 26)), preset="ultrafast"))
    if is_image:
        pixels = np.repeat(pixels[:1], frames, axis=0)
    asked = ask_all(rng, scene)
    asked.sort(key=lambda question: -(rng.random() ** (1 / URGENCY.get(question.kind, 1.0))))
    last = ask_description(rng, scene)
    if is_image and rng.random() < 0.6:
        last = Question(kind="describe", text=DESCRIBE_IMAGE, answer=last.answer)
    return Sample(
        scene=scene,
        frames=pixels,
        questions=(*_choose(asked), last),
        labels=label_cells(scene),
        is_image=is_image,
    )


def _choose(asked: list[Question]) -> list[Question]:
    """Of all questions in a drawn order: the urgent ones, and a few of the others."""
    urgent = [question for question in asked if question.kind in URGENCY]
    others = [question for question in asked if question.kind not in URGENCY]
    return [*urgent, *others[:EASY]][: QUESTIONS - 1]
