"""The overlay: what was kept of a clip, for people to judge with their eyes, as a PNG contact sheet or animated WebP.
Owns the picture; knows nothing of how cells were chosen.

Kept cells show in full with a thin outline, dropped ones in dim grey tones. The pixels of a dropped cell are those of
its own frame: what the model has read in their place is the last kept copy, and the two should look alike.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from evs.cells import CellGrid
from evs.selection import Selection

MAX_SHEET_FRAMES = 64
MAX_SHEET_PIXELS = 8_000_000
MAX_ANIMATED_FRAMES = 128
MAX_ANIMATED_SIDE = 640
MIN_WIDTH = 224
"""Smaller pictures are enlarged by a whole factor, so that their labels fit."""
DIM = 0.45
LINE_RGB = (255, 214, 10)
LINE_OPACITY = 0.5
LABEL_HEIGHT = 16
MARGIN = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Overlay:
    """pixels: (T * frames_per_slot, 3, H, W) uint8 RGB; times_s: one a frame; cells and selection: of the same clip."""

    pixels: npt.NDArray[np.uint8]
    times_s: Sequence[float]
    cells: CellGrid
    selection: Selection

    def __post_init__(self) -> None:
        fit = (self.cells.slots_of(self.pixels.shape), self.cells.cells_per_slot)
        if self.selection.keep.shape != fit:
            raise ValueError(
                f"a Selection of {self.selection.keep.shape} does not fit {fit[0]} slots of {fit[1]} cells"
            )
        if self.pixels.shape[1] != 3 or len(self.times_s) != len(self.pixels):
            raise ValueError(
                f"{self.pixels.shape} pixels and {len(self.times_s)} times are not RGB with a time a frame"
            )


def draw_sheet(overlay: Overlay) -> bytes:
    """A PNG of every sampled frame, or of MAX_SHEET_FRAMES evenly chosen ones, in reading order."""
    frames = _choose_frames(len(overlay.pixels), MAX_SHEET_FRAMES)
    height, width = overlay.pixels.shape[2:]
    columns = min(len(frames), ceil(sqrt(1.5 * len(frames) * height / width)))
    rows = ceil(len(frames) / columns)
    scale = min(ceil(MIN_WIDTH / width), sqrt(MAX_SHEET_PIXELS / (columns * width * rows * height)))
    tiles = [_draw_frame(overlay, frame, scale) for frame in frames]
    step = tiles[0].width + MARGIN, tiles[0].height + MARGIN
    sheet = Image.new("RGB", (columns * step[0] + MARGIN, rows * step[1] + MARGIN), "white")
    for place, tile in enumerate(tiles):
        sheet.paste(tile, (MARGIN + place % columns * step[0], MARGIN + place // columns * step[1]))
    return _encode(sheet, "PNG")


def draw_animation(overlay: Overlay) -> bytes:
    """A looping WebP at the clip's own pace (0.1 to 2 s a frame), of all frames or MAX_ANIMATED_FRAMES of them."""
    frames = _choose_frames(len(overlay.pixels), MAX_ANIMATED_FRAMES)
    height, width = overlay.pixels.shape[2:]
    scale = min(ceil(MIN_WIDTH / width), MAX_ANIMATED_SIDE / max(height, width))
    pictures = [_draw_frame(overlay, frame, scale) for frame in frames]
    gaps = np.diff([overlay.times_s[frame] for frame in frames])
    gaps = np.append(gaps, gaps[-1:] if len(gaps) else 1.0)
    durations = [round(1000 * gap) for gap in np.clip(gaps, 0.1, 2.0)]
    return _encode(
        pictures[0], "WEBP", save_all=True, append_images=pictures[1:], duration=durations, loop=0, quality=80, method=2
    )


def shade_frame(picture: npt.NDArray[np.uint8], keep: npt.NDArray[np.bool_], cells: CellGrid) -> npt.NDArray[np.uint8]:
    """(H, W, 3) with pixels under no kept cell dimmed and greyed, and kept cells outlined; keep (h, w).

    Worked example: of two 3 x 3 cells side by side, [1, 0] kept: pixel (1, 1) is as it was, the rest of columns 0 to 2
    is outline, and columns 3 to 5 are dim.
    """
    lit = np.zeros((*picture.shape[:2], 1), dtype=np.bool_)
    line = np.zeros_like(lit)
    for row, column in np.argwhere(keep):
        cell = slice(*cells.rows[row]), slice(*cells.columns[column])
        lit[cell] = True
        line[cell][[0, -1], :] = True
        line[cell][:, [0, -1]] = True
    colour = picture.astype(np.float32)
    dimmed = DIM / 2 * (colour + colour.mean(2, keepdims=True))
    outlined = (1 - LINE_OPACITY) * colour + LINE_OPACITY * np.array(LINE_RGB, dtype=np.float32)
    shaded: npt.NDArray[np.uint8] = np.where(line, outlined, np.where(lit, colour, dimmed)).astype(np.uint8)
    return shaded


def _choose_frames(count: int, most: int) -> list[int]:
    """All frames, or `most` of them from the first to the last, evenly spread."""
    if count <= most:
        return list(range(count))
    return [place * (count - 1) // (most - 1) for place in range(most)]


def _draw_frame(overlay: Overlay, frame: int, scale: float) -> Image.Image:
    """One frame under its label: slot, time, cells kept of all, and the rule that kept the slot whole, if one did."""
    slot, selection = frame // overlay.cells.frames_per_slot, overlay.selection
    keep = selection.keep[slot].reshape(overlay.cells.grid)
    picture = Image.fromarray(shade_frame(overlay.pixels[frame].transpose(1, 2, 0), keep, overlay.cells))
    size = max(1, int(picture.width * scale)), max(1, int(picture.height * scale))
    drawn = Image.new("RGB", (size[0], size[1] + LABEL_HEIGHT), "black")
    resample = Image.Resampling.BOX if scale < 1 else Image.Resampling.NEAREST
    drawn.paste(picture.resize(size, resample), (0, LABEL_HEIGHT))
    reasons = "".join(f"  {whole.reason}" for whole in selection.whole if whole.slot == slot)
    label = f"slot {slot}  {overlay.times_s[frame]:.2f} s  {keep.sum()}/{keep.size}{reasons}"
    ImageDraw.Draw(drawn).text((3, 2), label, fill="white", font=ImageFont.load_default(11))
    return drawn


def _encode(picture: Image.Image, format_name: str, **options: object) -> bytes:
    target = io.BytesIO()
    picture.save(target, format_name, **options)
    return target.getvalue()
