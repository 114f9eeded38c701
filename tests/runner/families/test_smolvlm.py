"""SmolVLM2 as transformers sees it: which frames, which pixels, which words; and cells that do not depend on what is
encoded beside them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.video_utils import VideoMetadata

from runner.families.smolvlm import SmolVLM
from runner.requests import VideoOptions
from tests.checkpoints.smolvlm import make_smolvlm
from tests.oracle import Clip, noise_clip, noise_picture
from tests.oracle_items import clip_arguments
from tests.runner.families.looking import look_at
from vision.errors import InvalidMediaOptionError
from vision.sampling import choose_frames
from vision.towers.packed import concatenate

SIZES = [(100, 77), (64, 190), (33, 33), (5, 300), (301, 7), (50, 50), (49, 51), (90, 130)]
CLIPS = [
    noise_clip(1, num_frames=1, size=(64, 64)),
    noise_clip(2, num_frames=7, size=(91, 131)),
    noise_clip(3, num_frames=40, size=(33, 20), fps=2.5),
]


@pytest.fixture(scope="module")
def loaded() -> tuple[SmolVLM, Any, Any]:
    model, processor = make_smolvlm()
    return SmolVLM(model, processor), model, processor


def as_patches(pictures: torch.Tensor, merge: int = 2, patch: int = 8) -> torch.Tensor:
    """(n, 3, H, W) normalised pictures as the tower's rows, cell by cell; edges under no whole patch left out."""
    n, _, height, width = pictures.shape
    h, w = height // patch // merge, width // patch // merge
    whole = pictures[:, :, : h * merge * patch, : w * merge * patch]
    cut = whole.reshape(n, 3, h, merge, patch, w, merge, patch)
    return cut.permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(n * h * w * merge * merge, -1)


# ------------------------------------------------------------------------------------------------------------ pixels


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("split", [True, False])
def test_image_pixels_equal_the_processor(size: tuple[int, int], split: bool) -> None:
    model, processor = make_smolvlm(split=split)
    family, picture = SmolVLM(model, processor), noise_picture(0, size=size)
    item = look_at(family, picture)
    expected = processor.image_processor(Image.fromarray(picture), return_tensors="pt")["pixel_values"][0]
    assert torch.equal(family.patch_batch(item, 0, item.grid.slots).pixel_values, as_patches(expected))


@pytest.mark.parametrize("clip", CLIPS, ids=["one_frame", "odd", "many"])
def test_clip_frames_and_pixels_equal_the_processor(loaded: tuple[SmolVLM, Any, Any], clip: Clip) -> None:
    family, _, processor = loaded
    item = look_at(family, clip)
    expected = processor.video_processor(**clip_arguments(clip))
    assert list(item.frames.frame_indices) == list(expected["video_metadata"][0].frames_indices)
    assert torch.equal(
        family.patch_batch(item, 0, item.grid.slots).pixel_values, as_patches(expected["pixel_values"][0])
    )


def test_sampled_frames_equal_the_processor_at_any_rate_and_length() -> None:
    """Rates, bounds, and clips so long that their ends are left out."""
    model, processor = make_smolvlm()
    family, video = SmolVLM(model, processor), processor.video_processor
    rng = np.random.default_rng(0)
    trimmed = 0
    for _ in range(300):
        total, rate = int(rng.integers(1, 3000)), float(rng.choice([24, 25, 30, 30000 / 1001, 12.5, 1]))
        most, fps = int(rng.choice([4, 10, 64])), float(rng.choice([0.5, 1, 2]))
        video.num_frames, video.fps = most, fps
        policy = family.decode_request("video", VideoOptions(), 1).sampling
        times = [index / rate for index in range(total)]
        metadata = VideoMetadata(total_num_frames=total, fps=rate, duration=total / rate)
        expected = video.sample_frames(metadata).tolist()
        assert list(choose_frames(times, total / rate, policy, source_fps=rate).indices) == expected
        trimmed += expected[0] > 0
    assert 20 < trimmed < 280


# ------------------------------------------------------------------------------------------------------------- words


def test_an_image_is_written_tile_by_tile(loaded: tuple[SmolVLM, Any, Any]) -> None:
    family, _, _ = loaded
    item = look_at(family, noise_picture(0, size=(64, 190)))
    written = family.write_item(item)
    fake, image, whole = "<fake_token_around_image>", "<image>", "<global-img>"
    tiles = f"{fake}<row_1_col_1>{image}{fake}<row_1_col_2>{image}\n\n"
    assert written.text == f"{tiles}{fake}{whole}{image}{fake}"
    assert [run.tolist() for run in written.runs] == [[*range(9)], [*range(9, 18)], [*range(18, 27)]]


def test_a_clip_is_written_frame_by_frame(loaded: tuple[SmolVLM, Any, Any]) -> None:
    family, _, _ = loaded
    item = look_at(family, noise_clip(0, num_frames=130, size=(20, 20), fps=1.0), max_frames=3)
    picture = "<fake_token_around_image><global-img><image><fake_token_around_image>"
    frames = "".join(f"\nFrame from {stamp}:{picture}" for stamp in ("00:01", "01:05", "02:09"))
    intro = "You are provided the following series of three frames from a 0:02:10 [H:MM:SS] video.\n"
    assert family.write_item(item).text == f"{intro}{frames}\n\n"


@pytest.mark.parametrize("part", [noise_picture(0, size=(100, 77)), *CLIPS], ids=["image", "one_frame", "odd", "many"])
def test_an_item_is_written_as_the_processor_writes_it(loaded: tuple[SmolVLM, Any, Any], part: Any) -> None:
    family, _, processor = loaded
    item = look_at(family, part)
    if item.kind == "image":
        out = processor.image_processor(Image.fromarray(part), return_row_col_info=True, return_tensors="pt")
        expected = processor.replace_image_token(out, 0)
    else:
        expected = processor.replace_video_token(processor.video_processor(**clip_arguments(part)), 0)
    written = family.write_item(item)
    assert written.text.replace("<image>", "<image>" * 9) == expected
    assert np.concatenate(written.runs).tolist() == list(range(item.selection.cells))


def test_positions_are_the_plain_index(loaded: tuple[SmolVLM, Any, Any]) -> None:
    assert loaded[0].positions(5, (), ()).tolist() == [[0, 1, 2, 3, 4]]


# ----------------------------------------------------------------------------------------------------------- encoding


@torch.inference_mode()
def test_items_encoded_together_equal_each_alone_and_slot_by_slot(loaded: tuple[SmolVLM, Any, Any]) -> None:
    """And both equal transformers' own tower and connector."""
    family, model, processor = loaded
    picture, clip = noise_picture(0, size=(100, 77)), CLIPS[1]
    items = [look_at(family, picture), look_at(family, clip)]
    whole = [family.patch_batch(item, 0, item.grid.slots) for item in items]
    together = family.encode(concatenate(whole)).embeddings.split([item.selection.cells for item in items])
    image = processor.image_processor(Image.fromarray(picture), return_tensors="pt")
    video = processor.video_processor(**clip_arguments(clip))
    for item, batch, rows, out in zip(items, whole, together, (image, video), strict=True):
        slots = [family.encode(family.patch_batch(item, t, t + 1)).embeddings for t in range(item.grid.slots)]
        expected = model.get_image_features(out["pixel_values"], out["pixel_attention_mask"]).pooler_output[0]
        for got in (rows, family.encode(batch).embeddings, torch.cat(slots)):
            torch.testing.assert_close(got, expected, atol=2e-5, rtol=2e-5)


# ------------------------------------------------------------------------------------------------------------- asking


def test_options_are_honoured(loaded: tuple[SmolVLM, Any, Any]) -> None:
    clip = noise_clip(0, num_frames=60, size=(20, 20), fps=10.0)
    for options, indices in (
        ({"num_frames": 4}, [0, 19, 39, 59]),
        ({"fps": 0.5}, [0, 29, 59]),
        ({"max_frames": 2}, [1 * 10, 50]),
        ({"max_tokens": 20}, [10, 50]),
        ({"start_s": 1.0, "end_s": 3.0}, [10, 29]),
    ):
        assert list(look_at(loaded[0], clip, **options).frames.frame_indices) == indices, options


@pytest.mark.parametrize(
    ("options", "param"),
    [({"max_pixels": 100}, "max_pixels"), ({"min_pixels": 1}, "min_pixels"), ({"max_tokens": 8}, "max_tokens"),
     ({"fps": 0.0}, "fps"), ({"num_frames": 4, "max_tokens": 9}, "num_frames")],
)  # fmt: skip
def test_options_that_cannot_be_honoured_are_refused(
    loaded: tuple[SmolVLM, Any, Any], options: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidMediaOptionError) as caught:
        loaded[0].decode_request("video", VideoOptions(**options), 1)
    assert caught.value.param == param


def test_no_package_is_needed_to_spell_a_number() -> None:
    """num2words is LGPL and not among our dependencies: without it the processor must load all the same."""
    script = (
        "import sys; sys.modules['num2words'] = None\n"
        "import transformers.utils.import_utils as u; u.is_num2words_available = lambda: False\n"
        "import transformers.utils as t; t.is_num2words_available = lambda: False\n"
        "import runner.families.smolvlm\n"
        "from tests.checkpoints.smolvlm import make_smolvlm\n"
        "print(type(make_smolvlm()[1]).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "SmolVLMProcessor", done.stderr[-2000:]
