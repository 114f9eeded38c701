"""Owns the arithmetic of scores: exact answers, shares by kind, paired differences with intervals, recall. Knows
nothing of engines or clips.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

DRAWS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Whether one answer was exactly right, about which clip, to which kind of question."""

    clip: int
    kind: str
    is_right: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Points (hundredths) with the ends of a 95 % interval."""

    points: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.points:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def share_right(marks: Iterable[Mark]) -> float:
    """Raises ValueError for no marks."""
    rights = [mark.is_right for mark in marks]
    if not rights:
        raise ValueError("no marks, so no share of them is right")
    return sum(rights) / len(rights)


def count_by_kind(marks: Iterable[Mark]) -> dict[str, tuple[int, int]]:
    """(right, asked) by kind."""
    counts: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for mark in marks:
        right, asked = counts[mark.kind]
        counts[mark.kind] = right + mark.is_right, asked + 1
    return dict(counts)


def compare(ours: Sequence[Mark], theirs: Sequence[Mark], *, seed: int = 0) -> Difference:
    """Ours less theirs, for the same questions in the same order; the interval from drawing clips anew, with
    repetition: a clip's questions share its pixels, so clips, not questions, are what was drawn.

    Worked example: clip 0 right and right against right and wrong, clip 1 wrong against wrong: +33.33 points.
    """
    if [(m.clip, m.kind) for m in ours] != [(m.clip, m.kind) for m in theirs]:
        raise ValueError("the two lists of marks answer different questions")
    clips = sorted({mark.clip for mark in ours})
    place = {clip: number for number, clip in enumerate(clips)}
    gain, asked = np.zeros(len(clips)), np.zeros(len(clips))
    for our, their in zip(ours, theirs, strict=True):
        gain[place[our.clip]] += our.is_right - their.is_right
        asked[place[our.clip]] += 1
    drawn = np.random.default_rng(seed).integers(0, len(clips), (DRAWS, len(clips)))
    spread = 100 * gain[drawn].sum(1) / asked[drawn].sum(1)
    low, high = np.quantile(spread, (0.025, 0.975))
    return Difference(points=float(100 * gain.sum() / asked.sum()), low=float(low), high=float(high))


def recall_at_1(texts: npt.NDArray[np.float32], clips: npt.NDArray[np.float32], names: Sequence[str]) -> float:
    """The share of texts whose nearest clip is theirs, or has the same name; texts, clips (N, D) unit vectors.

    Worked example: texts (1, 0) and (0, 1), clips (0.9, 0.1) and (0.8, 0.6): the second text, too, is nearest to its
    own, 0.6 against 0.1: recall 1.
    """
    nearest = (texts @ clips.T).argmax(1)
    return float(np.mean([names[found] == name for found, name in zip(nearest.tolist(), names, strict=True)]))
