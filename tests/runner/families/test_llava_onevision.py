"""LLaVA-OneVision as transformers sees it: which frames, which pixels, how many rows and what stands in them; and cells
that do not depend on what is encoded beside them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.video_utils import VideoMetadata

from runner.errors import EngineStartError
from runner.families.base import STRUCTURAL, DenseSpan
from runner.families.llava_onevision import LlavaOneVision
from runner.items import MediaItem
from runner.prompt import prune_prompt
from runner.requests import VideoOptions
from runner.usage import prompt_usage
from tests.checkpoints.llava_onevision import make_llava_onevision
from tests.harness import local_engine
from tests.items import item_of
from tests.oracle import Clip, as_message, noise_clip, noise_picture
from tests.oracle_items import clip_arguments
from tests.runner.families.looking import look_at
from tests.runner.families.test_smolvlm import as_patches
from vision.errors import InvalidMediaOptionError
from vision.sampling import choose_frames
from vision.towers.packed import concatenate

SIZES = [(100, 77), (64, 190), (33, 33), (5, 300), (301, 7), (44, 44), (88, 132), (132, 88), (90, 130)]
CLIPS = [
    noise_clip(1, num_frames=1, size=(64, 64)),
    noise_clip(2, num_frames=7, size=(91, 131)),
    noise_clip(3, num_frames=40, size=(33, 20), fps=2.5),
]
TOLERANCE = 1e-4  # of values that spread by about 20
Loaded = tuple[LlavaOneVision, Any, Any]


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    model, processor = make_llava_onevision()
    return LlavaOneVision(model, processor), model, processor


def video_inputs(processor: Any, clip: Clip) -> Any:
    most = min(processor.video_processor.num_frames, len(clip.frames))
    return processor.video_processor(**clip_arguments(clip), num_frames=most)


def rows_of(family: LlavaOneVision, item: MediaItem, cells: torch.Tensor) -> torch.Tensor:
    """The item's rows as the language model reads them: encoded cells, and what its placeholder reads as."""
    run = torch.from_numpy(np.concatenate(family.write_item(item).runs))
    rows = family.embed(torch.full((len(run),), family.placeholder_id(item.kind)))
    rows[run != STRUCTURAL] = cells[run[run != STRUCTURAL]]
    return rows


# ------------------------------------------------------------------------------------------------------------ pixels


@pytest.mark.parametrize("size", SIZES)
def test_pixels_of_a_lone_image_equal_the_processor(loaded: Loaded, size: tuple[int, int]) -> None:
    family, _, processor = loaded
    picture = noise_picture(0, size=size)
    item = look_at(family, picture)
    expected = processor.image_processor([Image.fromarray(picture)], return_tensors="pt")["pixel_values"][0]
    assert item.grid.pictures_per_slot == len(expected) > 1
    assert torch.equal(family.patch_batch(item, 0, 1).pixel_values, as_patches(expected, merge=1))


@pytest.mark.parametrize("size", SIZES)
def test_pixels_of_one_of_several_images_equal_the_processor(loaded: Loaded, size: tuple[int, int]) -> None:
    family, _, processor = loaded
    picture = noise_picture(0, size=size)
    item = look_at(family, picture, siblings=2)
    expected = processor.image_processor([[Image.fromarray(picture)] * 2], return_tensors="pt")["pixel_values"][0]
    assert torch.equal(family.patch_batch(item, 0, 1).pixel_values, as_patches(expected, merge=1))


@pytest.mark.parametrize("clip", CLIPS, ids=["one_frame", "odd", "many"])
def test_frames_and_pixels_of_a_clip_equal_the_processor(loaded: Loaded, clip: Clip) -> None:
    family, _, processor = loaded
    item = look_at(family, clip)
    expected = video_inputs(processor, clip)
    assert list(item.frames.frame_indices) == list(expected["video_metadata"][0].frames_indices)
    pixels = family.patch_batch(item, 0, item.grid.slots).pixel_values
    assert torch.equal(pixels, as_patches(expected["pixel_values_videos"][0], merge=1))


def test_sampled_frames_equal_the_processor_at_any_rate_and_length() -> None:
    model, processor = make_llava_onevision()
    family, video = LlavaOneVision(model, processor), processor.video_processor
    rng = np.random.default_rng(0)
    for _ in range(300):
        total, rate = int(rng.integers(1, 900)), float(rng.choice([24, 25, 30, 30000 / 1001, 12.5, 1]))
        video.num_frames, video.fps = (int(rng.integers(1, 40)), None) if rng.random() < 0.5 else (None, 0.5)
        metadata = VideoMetadata(total_num_frames=total, fps=rate, duration=total / rate)
        policy = family.decode_request("video", VideoOptions(max_frames=900), 1).sampling
        got = choose_frames([index / rate for index in range(total)], total / rate, policy, source_fps=rate)
        if video.num_frames is None or video.num_frames <= total:  # it refuses clips with fewer frames
            assert list(got.indices) == video.sample_frames(metadata).tolist()
        else:
            assert list(got.indices) == list(range(total))


# -------------------------------------------------------------------------------------------------------------- rows


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("siblings", [1, 2])
@torch.inference_mode()
def test_rows_of_an_image_equal_the_model(loaded: Loaded, size: tuple[int, int], siblings: int) -> None:
    """Tiles put together, margins left out, scaled down where there are too many, a newline after each row."""
    family, model, processor = loaded
    picture = noise_picture(0, size=size)
    item = look_at(family, picture, siblings=siblings)
    inputs = processor.image_processor([[Image.fromarray(picture)] * siblings], return_tensors="pt")
    expected = model.get_image_features(**inputs).pooler_output[0]
    rows = rows_of(family, item, family.encode(family.patch_batch(item, 0, 1)).embeddings)
    assert len(rows) == processor.replace_image_token(inputs, 0).count("<image>")
    torch.testing.assert_close(rows, expected, atol=TOLERANCE, rtol=TOLERANCE)


@torch.inference_mode()
def test_items_encoded_together_equal_each_alone_and_slot_by_slot(loaded: Loaded) -> None:
    """And each clip equals the model's own, newline included."""
    family, model, processor = loaded
    clips = [look_at(family, clip) for clip in CLIPS]
    items = [*clips, look_at(family, noise_picture(0, size=(64, 190)))]
    whole = [family.patch_batch(item, 0, item.grid.slots) for item in items]
    together = family.encode(concatenate(whole)).embeddings.split([item.selection.cells for item in items])
    for item, batch, cells in zip(items, whole, together, strict=True):
        slots = [family.encode(family.patch_batch(item, t, t + 1)).embeddings for t in range(item.grid.slots)]
        torch.testing.assert_close(cells, family.encode(batch).embeddings, atol=TOLERANCE, rtol=TOLERANCE)
        torch.testing.assert_close(torch.cat(slots), cells, atol=TOLERANCE, rtol=TOLERANCE)
    for clip, item, cells in zip(CLIPS, clips, together, strict=False):
        expected = model.get_video_features(video_inputs(processor, clip)["pixel_values_videos"]).pooler_output[0]
        torch.testing.assert_close(rows_of(family, item, cells), expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("feature_layer", [-2, 1, [1, -1]])
@torch.inference_mode()
def test_other_feature_layers_are_honoured(feature_layer: int | list[int]) -> None:
    model, processor = make_llava_onevision(feature_layer=feature_layer)
    family = LlavaOneVision(model, processor)
    item = look_at(family, CLIPS[1])
    expected = model.get_video_features(video_inputs(processor, CLIPS[1])["pixel_values_videos"]).pooler_output[0]
    cells = family.encode(family.patch_batch(item, 0, item.grid.slots)).embeddings
    torch.testing.assert_close(rows_of(family, item, cells), expected, atol=TOLERANCE, rtol=TOLERANCE)


def test_runs_are_the_worked_examples(loaded: Loaded) -> None:
    """5 x 5 patches: a clip's frame is 3 x 3 cells. 44 x 88 pixels fill two tiles: 25 cells, then 5 rows of 10."""
    family, _, _ = loaded
    clip = look_at(family, noise_clip(0, num_frames=2, size=(30, 30)))
    assert (clip.grid.grid, clip.grid.patches_per_slot) == ((3, 3), 25)
    assert family.write_item(clip).text == "<video>"
    assert family.write_item(clip).runs[0].tolist() == [*range(18), STRUCTURAL]
    image = look_at(family, noise_picture(0, size=(44, 88)))
    assert (image.grid.slots, image.grid.cells_per_slot, image.grid.patches_per_slot) == (1, 75, 75)
    rows = [[*range(start, start + 10), STRUCTURAL] for start in range(25, 75, 10)]
    assert family.write_item(image).runs[0].tolist() == [*range(25), *itertools.chain(*rows)]


@pytest.mark.parametrize("part", [CLIPS[1], noise_picture(0, size=(64, 190))], ids=["clip", "image"])
def test_newlines_survive_pruning_and_are_billed(loaded: Loaded, part: Any) -> None:
    """Law 2: placeholder rows = kept cells + structural rows = usage, whatever is kept."""
    family, _, _ = loaded
    item = look_at(family, part)
    run = np.concatenate(family.write_item(item).runs)
    newlines = int((run == STRUCTURAL).sum())
    tokens = np.concatenate(([7], np.full(len(run), family.placeholder_id(item.kind)), [8]))
    span = DenseSpan(item=0, start=1, cells=run)
    rng = np.random.default_rng(0)
    for share in (0.05, 0.5, 1.0):
        keep = rng.random(item.selection.keep.shape) < share
        keep[0, 0] = True
        pruned = item_of(item.frames, item.grid, keep)
        prompt = prune_prompt(tokens, family.positions(len(tokens), [span], [pruned]), [span], [pruned])
        usage = prompt_usage(prompt, [pruned], pruned.policy)
        assert len(prompt) - 2 == usage.image_tokens + usage.video_tokens == keep.sum() + newlines
        assert ((prompt.item == 0) & (prompt.rank < 0)).sum() == newlines
        assert prompt.rank[prompt.rank >= 0].tolist() == list(range(int(keep.sum())))
        assert (prompt.positions[0, -1], prompt.next_position) == (len(tokens) - 1, len(tokens))


def test_items_stand_as_the_template_writes_them(checkpoint: Callable[[str], Path]) -> None:
    """This family's template writes images before clips: each item's rows are still its own."""
    clip, picture = noise_clip(0, num_frames=2, size=(30, 30)), noise_picture(0, size=(44, 88))
    with local_engine(checkpoint("llava_onevision")) as local:
        laid = local.lay_out([as_message([clip, picture, "?"])])
    assert [item.kind for item in laid.items] == ["image", "video"]
    assert (laid.usage.image_tokens, laid.usage.video_tokens) == (80, 19)
    assert np.bincount(laid.prompt.item[laid.prompt.item >= 0]).tolist() == [80, 19]


# ------------------------------------------------------------------------------------------------------------- asking


def test_options_are_honoured(loaded: Loaded) -> None:
    clip = noise_clip(0, num_frames=60, size=(20, 20), fps=10.0)
    for options, indices in (
        ({}, [0, 12, 24, 36, 48]),
        ({"num_frames": 4}, [0, 15, 30, 45]),
        ({"fps": 0.5}, [0, 20, 40]),
        ({"max_frames": 2}, [0, 30]),
        ({"max_tokens": 20}, [0, 30]),
        ({"start_s": 1.0, "end_s": 3.0, "num_frames": 2}, [10, 20]),
    ):
        assert list(look_at(loaded[0], clip, **options).frames.frame_indices) == indices, options


def test_a_checkpoint_that_states_no_number_of_frames_sees_32() -> None:
    model, processor = make_llava_onevision(num_frames=None)
    policy = LlavaOneVision(model, processor).decode_request("video", VideoOptions(), 1).sampling
    assert (policy.num_frames, policy.fps) == (32, None)


@pytest.mark.parametrize(
    ("options", "param"),
    [({"max_pixels": 100}, "max_pixels"), ({"min_pixels": 1}, "min_pixels"), ({"max_tokens": 8}, "max_tokens"),
     ({"fps": 1.0, "num_frames": 4}, "num_frames"), ({"num_frames": 4, "max_tokens": 9}, "num_frames")],
)  # fmt: skip
def test_options_that_cannot_be_honoured_are_refused(loaded: Loaded, options: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidMediaOptionError) as caught:
        loaded[0].decode_request("video", VideoOptions(**options), 1)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("name", "value"), [("vision_feature_select_strategy", "default"), ("vision_aspect_ratio", "square")]
)
def test_checkpoints_that_are_not_computed_are_refused_at_start(name: str, value: str) -> None:
    model, processor = make_llava_onevision()
    setattr(model.config, name, value)
    with pytest.raises(EngineStartError, match=value):
        LlavaOneVision(model, processor)
