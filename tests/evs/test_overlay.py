"""The overlay is a true picture of the Selection, and bounded."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, ImageSequence

from evs import overlay as module
from evs.cells import CellGrid
from evs.overlay import LABEL_HEIGHT, MARGIN, Overlay, draw_animation, draw_sheet, shade_frame
from evs.policy import make_policy
from evs.select import select_cells
from evs.selection import keep_all
from tests.evs import clips


def make_overlay(slots: int, height: int = 56, width: int = 84) -> Overlay:
    pixels = clips.still(slots, height, width)
    cells = clips.cell_grid(pixels)
    times_s = [frame / 2 for frame in range(len(pixels))]
    selection = select_cells(pixels, cells, make_policy("gate"))
    return Overlay(pixels=pixels, times_s=times_s, cells=cells, selection=selection)


def read(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def test_worked_example() -> None:
    """Kept cells keep their middle, dropped ones turn dim and lose half their colour."""
    picture = np.zeros((3, 6, 3), dtype=np.uint8)
    picture[..., 0] = 240
    cells = CellGrid.regular(grid=(1, 2), cell=(3, 3), frames_per_slot=1)
    shaded = shade_frame(picture, np.array([[True, False]]), cells)
    line = np.ones((3, 6), dtype=np.bool_)
    line[:, 3:] = line[1, 1] = False
    assert shaded[1, 1].tolist() == [240, 0, 0]
    assert (shaded[line] == [247, 107, 5]).all()
    assert (shaded[:, 3:] == [72, 18, 18]).all()


def test_overlapping_cells_stay_lit() -> None:
    """A pixel is dim only when no kept cell covers it."""
    picture = np.full((8, 12, 3), 200, dtype=np.uint8)
    cells = CellGrid(rows=((0, 8),), columns=((0, 8), (4, 12)), frames_per_slot=1)
    shaded = shade_frame(picture, np.array([[True, False]]), cells)
    assert (shaded[1:-1, 1:7] == 200).all()
    assert (shaded[:, 8:] == 90).all()


def test_sheet_shows_every_frame() -> None:
    """Small frames are enlarged so that labels fit."""
    sheet = read(draw_sheet(make_overlay(3)))
    assert sheet.format == "PNG"
    tile = 84 * 3 + MARGIN, 56 * 3 + LABEL_HEIGHT + MARGIN
    assert (sheet.width - MARGIN) % tile[0] == (sheet.height - MARGIN) % tile[1] == 0
    columns, rows = (sheet.width - MARGIN) // tile[0], (sheet.height - MARGIN) // tile[1]
    assert (columns - 1) * rows < 6 <= columns * rows


def test_animation_runs_at_the_clip_s_pace() -> None:
    overlay = make_overlay(3)
    times_s = (0.0, 0.5, 1.0, 1.02, 9.0, 9.5)
    overlay = Overlay(pixels=overlay.pixels, times_s=times_s, cells=overlay.cells, selection=overlay.selection)
    film = read(draw_animation(overlay))
    assert (film.format, film.info["loop"]) == ("WEBP", 0)
    shown = []
    for frame in ImageSequence.Iterator(film):
        frame.load()  # the duration is known once the frame is read
        shown.append(frame.info["duration"])
    assert sum(shown) == 500 + 500 + 100 + 2000 + 500 + 500


@pytest.mark.parametrize("slots", [1, 2, 40])
def test_size_is_bounded(slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long clips are thinned evenly, first and last frame included, and large ones scaled down."""
    monkeypatch.setattr(module, "MAX_SHEET_FRAMES", 10)
    monkeypatch.setattr(module, "MAX_SHEET_PIXELS", 200_000)
    monkeypatch.setattr(module, "MAX_ANIMATED_FRAMES", 12)
    monkeypatch.setattr(module, "MAX_ANIMATED_SIDE", 300)
    overlay = make_overlay(slots, 112, 448)
    sheet, film = read(draw_sheet(overlay)), read(draw_animation(overlay))
    labels = sheet.width * (LABEL_HEIGHT + 2 * MARGIN) * 10
    assert sheet.width * sheet.height <= 200_000 + labels
    assert film.width == 300
    assert getattr(film, "n_frames", 1) <= 12


def test_frames_are_chosen_evenly() -> None:
    assert module._choose_frames(5, 8) == [0, 1, 2, 3, 4]
    assert module._choose_frames(9, 5) == [0, 2, 4, 6, 8]
    assert len(set(module._choose_frames(1000, 64))) == 64


def test_the_same_overlay_gives_the_same_bytes() -> None:
    overlay = make_overlay(2)
    assert draw_sheet(overlay) == draw_sheet(overlay)


def test_parts_of_different_clips_are_refused() -> None:
    overlay = make_overlay(3)
    with pytest.raises(ValueError, match=r"\(2, 6\) does not fit 3 slots of 6 cells"):
        Overlay(pixels=overlay.pixels, times_s=overlay.times_s, cells=overlay.cells, selection=keep_all(2, 6))
    with pytest.raises(ValueError, match="5 times are not RGB with a time a frame"):
        Overlay(pixels=overlay.pixels, times_s=overlay.times_s[:5], cells=overlay.cells, selection=overlay.selection)
