"""Clips drawn for the tests of pruning: (frames, 3, H, W) uint8, two frames a slot unless told otherwise."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evs.cells import CellGrid

Pixels = npt.NDArray[np.uint8]


def cell_grid(pixels: Pixels, side: int = 28, frames_per_slot: int = 2) -> CellGrid:
    """Square cells that fill the frames."""
    height, width = pixels.shape[2:]
    return CellGrid.regular(grid=(height // side, width // side), cell=(side, side), frames_per_slot=frames_per_slot)


def picture(height: int = 56, width: int = 84, seed: int = 0) -> Pixels:
    """A textured still, (3, H, W), away from black and white so that noise and fades have room."""
    return np.random.default_rng(seed).integers(60, 190, (3, height, width), dtype=np.uint8)


def still(slots: int, height: int = 56, width: int = 84, seed: int = 0) -> Pixels:
    return np.repeat(picture(height, width, seed)[None], 2 * slots, axis=0)


def add_noise(pixels: Pixels, sigma: float, seed: int = 1) -> Pixels:
    """Independent noise a pixel, channel and frame."""
    noise = np.random.default_rng(seed).normal(0, sigma, pixels.shape)
    noisy: Pixels = np.clip(pixels + noise, 0, 255).round().astype(np.uint8)
    return noisy


def add_level(pixels: Pixels, levels: npt.NDArray[np.float64]) -> Pixels:
    """Brighten frame i by levels[i]."""
    brighter: Pixels = np.clip(pixels + levels[:, None, None, None].round(), 0, 255).astype(np.uint8)
    return brighter


def draw_square(pixels: Pixels, frame: int, *, top: int, left: int, side: int, rgb: tuple[int, int, int]) -> None:
    """In place; what lies outside the frame is not drawn."""
    pixels[frame, :, max(0, top) : top + side, max(0, left) : left + side] = np.array(rgb, np.uint8)[:, None, None]


def static_camera(seconds: float, fps: float, *, speed: float = 40.0) -> Pixels:
    """A noisy 448x252 scene in which one 24-pixel square moves right at `speed` pixels a second."""
    frames = round(seconds * fps)
    pixels = np.repeat(picture(252, 448)[None], frames, axis=0)
    pixels = add_noise(pixels, 1.5)
    for frame in range(frames):
        draw_square(pixels, frame, top=130, left=10 + round(speed * frame / fps), side=24, rgb=(230, 40, 40))
    return pixels
