"""Method `gate`: equal to its definition, and right on the inputs it was made for."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evs.blocks import measure_blocks
from evs.cells import CellGrid
from evs.gate import GateRules, run_rules
from evs.policy import make_policy
from evs.select import select_cells
from evs.selection import Selection, WholeSlot
from tests.evs import clips
from tests.evs.oracles import gate_oracle, rectangles


def gate(pixels: clips.Pixels, side: int = 28, **settings: Any) -> Selection:
    return select_cells(pixels, clips.cell_grid(pixels, side), make_policy("gate", **settings))


def test_worked_example() -> None:
    """The table in gate_cells: first slot, a cell that passes, the floor, a cut, a refresh."""
    levels = np.array(
        [[0, 0, 0, 0, 0], [0, 0, 0, 0.5, 0], [0, 0, 0, 0.5, 0], [0.9, 0.9, 0.9, 0.9, 0], [0.9, 0.9, 0.9, 0.9, 0]]
    )
    frames = np.repeat((levels * 255).round().astype(np.uint8)[:, None, None, :], 3, axis=1)  # (5, 3, 1, 5)
    pixels = frames.repeat(8, axis=2).repeat(8, axis=3)
    cells = CellGrid.regular(grid=(1, 5), cell=(8, 8), frames_per_slot=1)
    selection = select_cells(pixels, cells, make_policy("gate", threshold=0.1, refresh=4))
    assert selection.keep.astype(int).tolist() == [
        [1, 1, 1, 1, 1], [0, 0, 0, 1, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1],
    ]  # fmt: skip
    assert [(whole.slot, whole.reason) for whole in selection.whole] == [(0, "first"), (3, "cut"), (4, "refresh")]


spans = st.lists(st.integers(8, 30), min_size=1, max_size=3)


def end_to_end(sides: list[int]) -> list[tuple[int, int]]:
    stops = np.cumsum(sides).tolist()
    return [(stop - side, stop) for stop, side in zip(stops, sides, strict=True)]


@settings(deadline=None, max_examples=80)
@given(data=st.data(), rows=spans, columns=spans, slots=st.integers(1, 7), frames=st.integers(1, 2))
def test_equals_the_definition(
    data: st.DataObject, rows: list[int], columns: list[int], slots: int, frames: int
) -> None:
    """Exact fractions, one block at a time, on clips with changes small and large, with and without the cap."""
    row_spans, column_spans = end_to_end(rows), end_to_end(columns)
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    pixels = np.repeat(rng.integers(0, 256, (1, 3, sum(rows), sum(columns))), slots * frames, axis=0)
    for row, column in (rng.integers(0, (len(rows), len(columns))) for _ in range(2 * slots)):
        start, strength = rng.integers(0, len(pixels)), rng.choice([2, 4, 12, 80])
        area = (slice(start, None), rng.integers(0, 3), slice(*row_spans[row]), slice(*column_spans[column]))
        pixels[area] += rng.integers(-strength, strength + 1)
    pixels = pixels.clip(0, 255).astype(np.uint8)
    rules = {
        "threshold": data.draw(st.sampled_from([0.0, 1 / 255, 3 / 255, 0.1])),
        "refresh": data.draw(st.sampled_from([2, 3, 32])),
        "scene_cut": data.draw(st.sampled_from([0.3, 0.6, 1.0])),
        "floor": data.draw(st.integers(1, 3)),
        "rate": data.draw(st.sampled_from([None, 0.0, 0.3, 0.9])),
    }
    cells = CellGrid(rows=tuple(row_spans), columns=tuple(column_spans), frames_per_slot=frames)
    found = select_cells(pixels, cells, make_policy("gate", **rules))
    exact = {name: None if value is None else Fraction(str(value)) for name, value in rules.items()}
    exact["threshold"] = Fraction(round(rules["threshold"] * 2550), 2550)
    keep, scores = gate_oracle(
        pixels, rectangles(row_spans, column_spans), frames_per_slot=frames,
        **{**exact, "refresh": rules["refresh"], "floor": rules["floor"]},
    )  # fmt: skip
    assert found.keep.tolist() == keep
    measured = run_rules(measure_blocks(pixels, cells), GateRules(**rules)).difference
    assert measured.dtype == np.float32
    np.testing.assert_allclose(measured, np.array(scores, dtype=np.float64), rtol=1e-6)


@pytest.mark.parametrize("slots", [1, 2, 3, 31, 32, 33, 70])
@pytest.mark.parametrize("side", [14, 28, 32])
def test_static_clip_keeps_its_first_slot_refreshes_and_floors(slots: int, side: int) -> None:
    """And nothing more."""
    selection = gate(clips.still(slots, 2 * side, 3 * side), side)
    assert selection.kept_per_slot == tuple(6 if slot % 32 == 0 else 1 for slot in range(slots))
    assert selection.whole_counts == {"first": 1, "refresh": (slots - 1) // 32, "cut": 0}


@pytest.mark.parametrize("level", [0, 255])
def test_flat_clips_are_static(level: int) -> None:
    """Black and white have nothing to divide by."""
    pixels = np.full((8, 3, 56, 84), level, dtype=np.uint8)
    assert gate(pixels).kept_per_slot == (6, 1, 1, 1)


@pytest.mark.parametrize("side", [14, 28, 32])
def test_sensor_noise_does_not_defeat_it(side: int) -> None:
    """Sigma 3/255, fresh in each pixel, channel and frame: as if nothing moved; the noise replaces R at floors too."""
    pixels = clips.add_noise(clips.still(16, 252, 448), 3)
    selection = gate(pixels, side)
    assert set(selection.kept_per_slot[1:]) == {1}


def test_a_slow_fade_is_kept() -> None:
    """A third of a level a frame never passes from slot to slot; against the last kept copy it passes every 5 slots."""
    pixels = clips.add_level(clips.still(40, 112, 168), np.arange(80) / 3)
    selection = gate(pixels, refresh=1000)
    assert 5 <= selection.whole_counts["cut"] <= 8
    shown = np.maximum.accumulate(np.where(selection.keep[:, 3], np.arange(40), 0))
    drift = np.abs(pixels[::2].mean((1, 2, 3)) - pixels[2 * shown].mean((1, 2, 3)))
    assert drift.max() <= 3.01, "what stands in for a dropped cell is never further off than the threshold"


@pytest.mark.parametrize("frame", [6, 7])
def test_a_flash_in_one_frame_of_a_slot_is_kept(frame: int) -> None:
    """Even one of 4 levels, which a mean over both frames would halve to under the threshold."""
    levels = np.zeros(16)
    levels[frame] = 4
    selection = gate(clips.add_level(clips.still(8), levels))
    assert selection.kept_per_slot == (6, 1, 1, 6, 6, 1, 1, 1)


def test_frames_that_change_against_each_other_do_not_cancel() -> None:
    levels = np.zeros(8)
    levels[4], levels[5] = 6, -6
    assert gate(clips.add_level(clips.still(4), levels)).kept_per_slot == (6, 1, 6, 6)


@pytest.mark.parametrize("corner", [(30, 58), (45, 70), (48, 76)])
def test_a_late_small_object_is_kept(corner: tuple[int, int]) -> None:
    """6 pixels a side, in the last slot, wherever in its cell: also where the last block overlaps."""
    pixels = clips.still(12)
    for frame in (22, 23):
        clips.draw_square(pixels, frame, top=corner[0], left=corner[1], side=6, rgb=(250, 250, 250))
    selection = gate(pixels)
    assert selection.kept_per_slot[-1] == 1
    assert selection.keep[-1].tolist() == [False] * 5 + [True], "cell 5 covers rows 28 to 56, columns 56 to 84"


def test_a_colour_change_at_equal_brightness_is_kept() -> None:
    pixels = np.full((8, 3, 56, 84), 50, dtype=np.uint8)
    pixels[:4, 0] = 200
    pixels[4:, 1] = 200
    assert gate(pixels).whole[1:] == (WholeSlot(slot=2, reason="cut"),)


@pytest.mark.parametrize("first_frame", [8, 9])
def test_a_hard_cut_keeps_its_slot_whole(first_frame: int) -> None:
    """Also when it falls inside a slot: that slot, and the next, whose first frame is new."""
    pixels = clips.still(8)
    pixels[first_frame:] = clips.picture(seed=9)
    cuts = [whole.slot for whole in gate(pixels).whole if whole.reason == "cut"]
    assert cuts == ([4] if first_frame == 8 else [4, 5])


def test_a_pan_keeps_everything() -> None:
    """Nothing of a moving picture looks like its last kept copy."""
    wide = clips.picture(56, 400).reshape(3, 14, 4, 100, 4).mean((2, 4)).repeat(4, 1).repeat(4, 2).astype(np.uint8)
    pixels = np.stack([wide[:, :, 6 * frame : 6 * frame + 84] for frame in range(16)])
    assert gate(pixels).kept_share == 1


def test_a_small_mover_keeps_the_cells_it_leaves_and_enters() -> None:
    pixels = np.repeat(clips.picture(112, 168)[None], 12, axis=0)
    for frame in range(12):
        clips.draw_square(pixels, frame, top=40, left=10 + 10 * frame, side=10, rgb=(255, 0, 255))
    selection = gate(pixels)
    rows, columns = np.divmod(np.flatnonzero(selection.keep[1:].any(0)), 6)
    assert set(rows.tolist()) == {1}
    assert max(selection.kept_per_slot[1:]) <= 3
    assert selection.keep[1:, 6:11].any(0).all(), f"the mover passed columns 0 to 4, kept {sorted(columns.tolist())}"


@pytest.mark.parametrize("speed", [5.0, 40.0])
def test_doubling_the_fps_of_a_static_camera_keeps_few_more(speed: float) -> None:
    """Fewer than 1.4 times as many cells for twice as many frames."""
    once = gate(clips.static_camera(10, 2, speed=speed))
    twice = gate(clips.static_camera(10, 4, speed=speed))
    assert twice.cells == 2 * once.cells
    assert once.kept < twice.kept < 1.4 * once.kept


def test_kept_cells_grow_with_what_changes() -> None:
    """Each further slot keeps at most the changed share, 1 / refresh and 1 / P of a slot."""
    pixels = np.repeat(clips.picture(112, 168)[None], 256, axis=0)
    for frame in range(256):
        clips.draw_square(pixels, frame, top=40, left=frame % 20, side=8, rgb=(255, 0, 255))
    kept = {slots: gate(pixels[: 2 * slots]).kept for slots in (32, 64, 128)}
    changed = 1 / 24  # the mover stays inside one cell of 24
    for short, long in ((32, 64), (64, 128), (32, 128)):
        assert kept[long] - kept[short] <= (long - short) * 24 * (changed + 1 / 32 + 1 / 24)


def test_the_cap_holds_and_cuts_the_least_changed() -> None:
    """Slot 0 and the floors stay; of the rest those that changed most; a slot no longer whole is not called so."""
    pixels = clips.still(8)
    pixels[8:] = clips.picture(seed=9)
    free, capped = gate(pixels), gate(pixels, rate=0.7)
    assert free.kept_per_slot == (6, 1, 1, 1, 6, 1, 1, 1)
    assert capped.kept == 48 * 3 // 10 == 14
    assert capped.kept_per_slot == (6, 1, 1, 1, 2, 1, 1, 1)
    assert not (capped.keep & ~free.keep).any()
    assert [whole.slot for whole in capped.whole] == [0]


def test_slot_0_and_the_floors_are_never_cut() -> None:
    assert gate(clips.still(8), rate=0.99).kept_per_slot == (6, 1, 1, 1, 1, 1, 1, 1)


def test_a_difference_equal_to_the_threshold_does_not_pass() -> None:
    levels = np.repeat([0.0, 3.0, 4.0], 2)
    assert gate(clips.add_level(clips.still(3), levels)).kept_per_slot == (6, 1, 6)


def test_a_cut_needs_more_than_its_share() -> None:
    """3 cells of 5 are exactly 60 %: not a cut, whatever floats make of 0.6 * 5."""
    pixels = clips.still(2, 28, 140)
    pixels[2:, :, :, :84] += 20
    assert gate(pixels).kept_per_slot == (5, 3)
    pixels[2:, :, :, 84:112] += 20
    assert gate(pixels).kept_per_slot == (5, 5)
