"""Owns the pixels of a scene: ground, things, light that fades, a camera that shakes, sensor noise. Knows no words."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from demo.scenes import FRAMES_PER_SLOT, Scene
from demo.shapes import COLORS, paste_shape

Frames = npt.NDArray[np.uint8]
Picture = npt.NDArray[np.float32]
Relief = npt.NDArray[np.float64]
NOISE_VALUES = 1 << 23


@dataclass(frozen=True, slots=True, kw_only=True)
class Filming:
    """noise: sigma of sensor noise, in 255ths. light: gain in the first and the last frame. shake: the most pixels that
    the camera jumps, in each direction and frame."""

    noise: float = 0.0
    light: tuple[float, float] = (1.0, 1.0)
    shake: int = 0


FADING_SHARE = 0.15
SHAKING_SHARE = 0.08


def draw_filming(rng: random.Random) -> Filming:
    """How a clip is filmed: 15 % of clips fade slowly, 8 % shake by one or two pixels."""
    fades = rng.random() < FADING_SHARE
    light = (rng.uniform(0.75, 1.15), rng.uniform(0.75, 1.15)) if fades else (1.0, 1.0)
    shake = rng.choice((1, 2)) if rng.random() < SHAKING_SHARE else 0
    return Filming(noise=rng.choice((0.0, 0.0, 1.5, 3.0)), light=light, shake=shake)


def render_scene(rng: random.Random, scene: Scene, filming: Filming) -> Frames:
    """(T, H, W, 3) uint8."""
    ground = make_ground(rng, scene.height, scene.width)
    out = np.empty((scene.frames, scene.height, scene.width, 3), dtype=np.uint8)
    for number in range(scene.frames):
        frame, progress, slot = ground.copy(), number / (scene.frames - 1), number // FRAMES_PER_SLOT
        for thing in scene.things:
            if thing.is_seen(slot):
                paste_shape(frame, thing.shape, thing.place(progress), thing.radius, COLORS[thing.color_in(slot)])
        if filming.light != (1.0, 1.0):
            frame *= np.float32(filming.light[0] + (filming.light[1] - filming.light[0]) * progress)
        if filming.shake:
            frame = _shift(frame, filming.shake, rng)
        out[number] = frame.clip(0, 255)
    return _add_noise(rng, out, filming.noise) if filming.noise else out


def _shift(frame: Picture, most: int, rng: random.Random) -> Picture:
    """The frame moved by up to `most` pixels; its edges are repeated."""
    height, width = frame.shape[:2]
    y, x = rng.randint(0, 2 * most), rng.randint(0, 2 * most)
    padded = np.pad(frame, ((most, most), (most, most), (0, 0)), mode="edge")
    return padded[y : y + height, x : x + width]


@cache
def _noise_bank() -> npt.NDArray[np.float32]:
    """Drawing fresh noise costs more than the clip, so clips take stretches of one bank."""
    return np.random.default_rng(0).standard_normal(NOISE_VALUES, dtype=np.float32)


def _add_noise(rng: random.Random, frames: Frames, sigma: float) -> Frames:
    """Of sensor noise, a stretch for each frame: long clips repeat some of it, in other frames."""
    bank, noisy = _noise_bank(), np.empty_like(frames)
    for frame, out in zip(frames, noisy, strict=True):
        start = rng.randrange(len(bank) - frame.size)
        out[...] = (frame + sigma * bank[start : start + frame.size].reshape(frame.shape)).clip(0, 255)
    return noisy


def make_ground(rng: random.Random, height: int, width: int) -> Picture:
    """(H, W, 3) float32: a dull colour, flat, graded or with a texture that the camera sees in every frame."""
    base = np.array([rng.randrange(70, 190) for _ in range(3)], dtype=np.float32)
    base = base * 0.35 + base.mean() * 0.65
    relief = {
        "flat": _flat,
        "graded": _graded,
        "blocks": _blocks,
        "clouds": _clouds,
        "stripes": _stripes,
        "grain": _grain,
    }[rng.choice(("flat", "flat", "graded", "graded", "blocks", "clouds", "stripes", "grain"))]
    return np.asarray((base + relief(rng, height, width)[..., None]).clip(0, 255), dtype=np.float32)


def _flat(_: random.Random, height: int, width: int) -> Relief:
    return np.zeros((height, width))


def _graded(rng: random.Random, height: int, width: int) -> Relief:
    across, down = np.linspace(-25, 25, width), np.linspace(-25, 25, height)[:, None]
    slope = across if rng.random() < 0.5 else down
    return np.zeros((height, width)) + slope


def _blocks(rng: random.Random, height: int, width: int) -> Relief:
    draws = np.random.default_rng(rng.randrange(1 << 30))
    tiles = draws.normal(0, 10, (height // 8 + 1, width // 8 + 1))
    return tiles.repeat(8, axis=0).repeat(8, axis=1)[:height, :width]


def _clouds(rng: random.Random, height: int, width: int) -> Relief:
    """A coarse random field, bilinear between its points."""
    field = np.random.default_rng(rng.randrange(1 << 30)).normal(0, 14, (5, 6))
    y, x = np.linspace(0, 3.999, height), np.linspace(0, 4.999, width)
    rows, columns = y.astype(int), x.astype(int)
    fy, fx = (y - rows)[:, None], (x - columns)[None]
    upper = field[rows][:, columns] * (1 - fx) + field[rows][:, columns + 1] * fx
    lower = field[rows + 1][:, columns] * (1 - fx) + field[rows + 1][:, columns + 1] * fx
    blended: Relief = upper * (1 - fy) + lower * fy
    return blended


def _stripes(rng: random.Random, height: int, width: int) -> Relief:
    pitch, depth = rng.uniform(8, 30), rng.uniform(4, 12)
    across, down = rng.uniform(-1, 1), rng.uniform(-1, 1)
    phase = np.arange(width)[None] * across + np.arange(height)[:, None] * down
    wave: Relief = depth * np.sin(2 * np.pi * phase / pitch)
    return wave


def _grain(rng: random.Random, height: int, width: int) -> Relief:
    return np.random.default_rng(rng.randrange(1 << 30)).normal(0, 6, (height, width))
