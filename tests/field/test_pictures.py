"""Clips and pictures of awkward shape, as the model gets them: turned, odd, tiny, thin, large, bounded, padded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.clips import draw_numbered, looks_upright, make_clip, make_image, read_numbers
from tests.field.shapes import make_turned
from tests.field.talk import Talk, data_url, raw, read_frames
from tests.oracle import Clip, noise_clip, noise_picture

CELL = 32  # pixels of a cell's side
CELLS_PER_SLOT = 16  # the checkpoint's own bound


def numbered(frames: int, size: tuple[int, int] = (96, 128), fps: float = 2.0) -> Clip:
    return Clip(frames=np.stack([draw_numbered(number, *size) for number in range(frames)]), fps=fps)


def plain(frames: int, size: tuple[int, int]) -> Clip:
    return Clip(frames=np.full((frames, *size, 3), 90, np.uint8), fps=2.0)


def check_shape(item: dict[str, Any]) -> int:
    """Cells of a slot. Sides are whole cells, and every slot has all of them."""
    rows, columns = item["grid"]
    assert item["size"] == [rows * CELL, columns * CELL]
    assert item["kept"] == [list(range(rows * columns))] * item["slots"]
    return int(rows * columns)


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_turned_clips_stand_upright(talk: Talk, degrees: int) -> None:
    """P-ROT-1: a phone's clip is turned before it is resized."""
    item = talk.render(raw(make_turned(degrees)), include=["frames"])["items"][0]
    height, width = item["size"]
    assert (height > width) is (degrees != 180)
    assert all(looks_upright(frame) for frame in read_frames(item))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_stand_as_their_exif_says(talk: Talk, orientation: int) -> None:
    """P-ROT-1, of pictures: the stored pixels are turned and mirrored back."""
    turned = draw_numbered(5, 96, 160)
    stored = {
        1: turned, 2: turned[:, ::-1], 3: turned[::-1, ::-1], 4: turned[::-1],
        5: turned.transpose(1, 0, 2), 6: np.rot90(turned, 1), 7: np.rot90(turned.transpose(1, 0, 2), 2),
        8: np.rot90(turned, -1),
    }[orientation]  # fmt: skip
    data = make_image(picture=np.ascontiguousarray(stored), exif_orientation=orientation, image_format="JPEG")
    part = {"type": "image_url", "image_url": {"url": data_url("image/jpeg", data)}}
    item = talk.render(part, include=["frames"])["items"][0]
    assert item["size"][0] < item["size"][1]
    assert looks_upright(read_frames(item)[0])


@pytest.mark.parametrize("size", [(241, 321), (101, 67), (97, 500), (333, 65)])
def test_odd_sizes_are_read_right(talk: Talk, size: tuple[int, int]) -> None:
    """P-ODD: no row is shifted, no edge is noise; each sampled frame is the one its time says."""
    clip = numbered(6, size)
    item = talk.render(clip, include=["frames"], mm_processor_kwargs={"num_frames": 4})["items"][0]
    check_shape(item)
    frames = read_frames(item)
    assert read_numbers(frames) == [round(time * clip.fps) for time in item["timestamps_s"]]
    assert all(looks_upright(frame) for frame in frames)


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (2, 300), (16, 16), (28, 26)])
def test_tiny_pictures_have_a_cell(talk: Talk, size: tuple[int, int]) -> None:
    """P-TINY: never an answer about no pixels at all."""
    parts = (plain(3, size), np.full((*size, 3), 90, np.uint8))
    for part in parts:
        item = talk.render(part)["items"][0]
        cells = check_shape(item)
        assert cells >= 1
        usage = talk.ask(part, "?")["usage"]["prompt_tokens_details"]
        assert usage["image_tokens"] + usage["video_tokens"] == cells * item["slots"]


@pytest.mark.parametrize("size", [(8, 2048), (2048, 8)])
def test_thin_pictures_are_refused_by_name(talk: Talk, size: tuple[int, int]) -> None:
    """P-ASPECT-1: the limit is in the message."""
    for part in (plain(2, size), np.zeros((*size, 3), np.uint8)):
        assert "200" in talk.refusal(part, "?")["message"]


def test_large_clips_keep_to_the_budget(talk: Talk) -> None:
    """P-LARGE-1: what a frame of any size may cost is the checkpoint's bound."""
    frames = [np.full((2160, 4096, 3), shade, np.uint8) for shade in (10, 200)]
    rendered = talk.render(raw(make_clip(frames=frames, fps=2)))
    assert check_shape(rendered["items"][0]) <= CELLS_PER_SLOT
    assert rendered["usage"]["prompt_tokens_details"]["video_tokens"] <= CELLS_PER_SLOT


@pytest.mark.parametrize("low", [None, 1])
def test_pixel_bounds_are_kept(talk: Talk, low: int | None) -> None:
    """P-MINMAX-1 and 3: each frame's pixels lie between the bounds; nothing is accepted and dropped."""
    clip = noise_clip(71, num_frames=4, size=(200, 300))
    counts = []
    for bound in (1024, 3 * 1024, 8 * 1024, 16 * 1024):
        item = talk.render(clip, mm_processor_kwargs={"max_pixels": bound, "min_pixels": low})["items"][0]
        counts.append(check_shape(item))
        assert counts[-1] <= bound // CELL**2
    assert counts == sorted(set(counts))
    small = noise_clip(72, num_frames=4, size=(32, 32))
    for cells in (4, 9):
        item = talk.render(small, mm_processor_kwargs={"min_pixels": cells * CELL**2})["items"][0]
        assert check_shape(item) == cells


def test_pixel_bounds_are_kept_for_images(talk: Talk) -> None:
    """P-MINMAX-3, of images: `mm_processor_kwargs` are not only for clips."""
    picture = noise_picture(73, size=(150, 150))
    free, bounded, small = (
        talk.render(picture, mm_processor_kwargs=knobs)["items"][0]
        for knobs in ({}, {"max_pixels": 4096}, {"max_pixels": 1024})
    )
    assert check_shape(small) == 1 < check_shape(bounded) <= 4 < check_shape(free)


EITHER = pytest.mark.parametrize(
    "part", [noise_clip(74, num_frames=2, size=(64, 64)), noise_picture(74, size=(64, 64))]
)


@EITHER
def test_bounds_that_cross_are_refused(talk: Talk, part: Any) -> None:
    """P-MINMAX-1: min over max is nobody's wish."""
    error = talk.refusal(part, mm_processor_kwargs={"min_pixels": 9000, "max_pixels": 5000})
    assert error["status"] == 400
    assert "min_pixels" in error["message"] and "9000" in error["message"]


@EITHER
def test_the_checkpoints_bound_is_the_ceiling(talk: Talk, part: Any) -> None:
    """A request may ask for less, not for more: a few bytes must not be worth gigabytes of pixels."""
    wide, own = (talk.render(part, mm_processor_kwargs=knobs)["items"] for knobs in ({"max_pixels": 2**31 - 1}, {}))
    assert wide == own
    error = talk.refusal(part, mm_processor_kwargs={"min_pixels": 2**28, "max_pixels": 2**31 - 1})
    assert error["status"] == 400
    assert "min_pixels" in error["message"]


@pytest.mark.parametrize("size", [(31, 639), (639, 31), (33, 2000)])
def test_shrinking_leaves_each_side_a_cell(talk: Talk, size: tuple[int, int]) -> None:
    """P-MINMAX-2: rounding down never takes a whole side away."""
    knobs = {"max_pixels": 12 * CELL**2, "min_pixels": 1}
    item = talk.render(noise_clip(75, num_frames=2, size=size), mm_processor_kwargs=knobs)["items"][0]
    assert check_shape(item) >= 1


@pytest.mark.parametrize(("frames", "slots"), [(1, 1), (2, 1), (3, 2), (5, 3), (7, 4), (8, 4)])
def test_odd_counts_are_filled_up(talk: Talk, frames: int, slots: int) -> None:
    """P-TPAD-1, S-COUNT: the last frame is repeated to a whole slot, once and nowhere else counted."""
    clip = numbered(frames)
    rendered = talk.render(clip, include=["frames"], video={"fps": 2})
    item = rendered["items"][0]
    assert item["slots"] == slots
    assert read_numbers(read_frames(item)) == list(range(frames))
    assert item["timestamps_s"] == [number / 2 for number in range(frames)]
    cells = check_shape(item) * slots
    usage = talk.ask(clip, "?", video={"fps": 2})["usage"]
    assert usage["prompt_tokens_details"]["video_tokens"] == cells
    assert usage["evs"]["cells"] == cells
    assert len(usage["video"][0]["timestamps_s"]) == usage["evs"]["frames"] == frames


def test_the_same_clip_twice_is_two_clips(talk: Talk) -> None:
    """P-DUP-1, C-SAME-1: twice the tokens, two places, on the very first request about it; and alike in a batch."""
    clip = noise_clip(76, num_frames=5, size=(80, 80))
    twice = talk.ask(clip, "and ", clip, "?", logprobs=True, top_logprobs=3)
    once = talk.ask(clip, "?")
    details = "prompt_tokens_details"
    assert twice["usage"][details]["video_tokens"] == 2 * once["usage"][details]["video_tokens"]
    items = talk.render(clip, "and ", clip, "?")["items"]
    assert items[0] == items[1]
    picture = noise_picture(77, size=(70, 90))
    pictures = talk.ask(picture, picture, picture, "?")
    assert pictures["usage"][details]["image_tokens"] % 3 == 0


# ---------------------------------------------------------------------------------------------------- sampling by wish


@pytest.mark.parametrize(
    ("video", "numbers"),
    [
        ({"max_frames": 1}, [0]),
        ({"fps": 1e-9}, [0, 19]),
        ({"fps": 1000}, list(range(20))),
        ({"fps": 1000, "max_frames": 4}, [0, 6, 13, 19]),
        ({"start_s": 2.5, "end_s": 3.5}, [5, 6]),
        ({"start_s": 9.5}, [19]),
        ({"end_s": 0.1}, [0]),
        ({"end_s": 1e9, "max_frames": 2}, [0, 19]),
        ({"start_s": 3.0, "end_s": 5.0, "fps": 1}, [6, 9]),
    ],
)
def test_wishes_are_met(talk: Talk, video: dict[str, Any], numbers: list[int]) -> None:
    """S-REQ-3, 4, 5: extreme rates, counts and cuts give the frames they say; times and counts agree."""
    item = talk.render(numbered(20), video=video, include=["frames"])["items"][0]
    assert read_numbers(read_frames(item)) == numbers
    assert item["timestamps_s"] == [number / 2 for number in numbers]
    assert item["slots"] == -(-len(numbers) // 2)


@pytest.mark.parametrize(
    "video",
    [
        {"fps": 0},
        {"fps": -1},
        {"fps": 1e9},
        {"fps": "2"},
        {"fps": True},
        {"max_frames": 0},
        {"max_frames": 1.5},
        {"max_frames": 10**12},
        {"start_s": 10.0},
        {"start_s": -1},
        {"start_s": 3, "end_s": 3},
        {"end_s": 0},
        {"end_s": 1e300},
        {"max_tokens": 0},
        {"fsp": 2},
        {"fps": [2, 4]},
        {"fps": {"0": 2, "1": 4}},
    ],
    ids=str,
)
def test_senseless_wishes_are_refused(talk: Talk, video: dict[str, Any]) -> None:
    """S-REQ-6, C-KEY-2: each by its own name."""
    error = talk.refusal(numbered(20), "?", video=video)
    assert error["status"] == 400
    assert list(video)[-1] in error["message"] + str(error["param"])


def test_numbers_that_json_does_not_have_are_refused(talk: Talk) -> None:
    """S-REQ-6: NaN and infinity."""
    for value in (float("nan"), float("inf")):
        assert talk.refusal("?", video={"fps": value})["status"] == 400
        assert talk.refusal("?", temperature=value)["status"] == 400
