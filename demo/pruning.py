"""Owns how a training step prunes its clips: by the methods as they are served, with numbers drawn anew. Knows nothing
of prompts or losses."""

from __future__ import annotations

import random
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from demo.labels import CELL
from demo.mp4 import Frames
from demo.scenes import FRAMES_PER_SLOT
from evs.cells import CellGrid
from evs.policy import EvsPolicy, make_policy
from evs.select import select_cells
from evs.similarity import keep_turned

Keep = npt.NDArray[np.bool_]
Regime = Literal["none", "gate", "evs", "random"]
REGIMES: dict[Regime, float] = {"none": 0.22, "gate": 0.54, "evs": 0.12, "random": 0.12}
REUSE_SHARE = 0.8
"""Of steps with `gate` and `random` whose dropped cells stand in the encoder through their last kept copies."""


def draw_regime(rng: random.Random) -> Regime:
    return rng.choices(tuple(REGIMES), weights=tuple(REGIMES.values()))[0]


def draw_policy(rng: random.Random, regime: Regime) -> EvsPolicy:
    """One clip's policy."""
    match regime:
        case "none":
            return make_policy("none")
        case "gate":
            return make_policy("gate", threshold=rng.choice((2, 3, 3, 3, 4, 6)) / 255)
        case "evs":
            return make_policy("evs", rate=rng.choice((0.4, 0.5, 0.6, 0.7)))
        case "random":
            return make_policy("random", rate=rng.choice((0.3, 0.45, 0.6)), seed=rng.randrange(1 << 30))


def keep_cells(frames: Frames, policy: EvsPolicy) -> Keep:
    """(T, P) of a method that needs no encoder; frames (T * 2, H, W, 3)."""
    grid = (frames.shape[1] // CELL, frames.shape[2] // CELL)
    cells = CellGrid.regular(grid=grid, cell=(CELL, CELL), frames_per_slot=FRAMES_PER_SLOT)
    return select_cells(np.ascontiguousarray(frames.transpose(0, 3, 1, 2)), cells, policy).keep


def keep_by_turn(embeddings: torch.Tensor, policy: EvsPolicy) -> Keep:
    """(T, P) of method `evs`; embeddings (T, P, D)."""
    assert policy.rate is not None
    return keep_turned(embeddings, policy.rate).keep
