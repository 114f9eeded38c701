"""Qwen2.5-VL and Qwen2-VL as transformers sees them: what is sampled, how large, which pixels, which positions; and
checkpoints of every dtype and layout."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers.video_utils import VideoMetadata

from runner.errors import EngineStartError
from runner.families.base import DenseSpan
from runner.families.qwen2_5_vl import Qwen2VL, Qwen25VL, seconds_per_slot
from runner.items import MediaItem
from runner.requests import VideoOptions
from tests.checkpoints.qwen2_5_vl import make_qwen2_5_vl, make_qwen2_vl
from tests.harness import local_engine
from tests.items import item_of
from tests.oracle import answer, as_message, load_oracle, noise_clip, noise_picture, prepare_inputs, worst_error
from vision.errors import InvalidMediaOptionError
from vision.frames import MediaKind, VideoFrames
from vision.patches import PatchGrid
from vision.resize import resize_frames
from vision.sampling import choose_frames

FAMILIES: dict[str, tuple[Any, Any]] = {
    "qwen2_5_vl": (make_qwen2_5_vl, Qwen25VL),
    "qwen2_vl": (make_qwen2_vl, Qwen2VL),
}
AS_TRAINED = VideoOptions()


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def loaded(request: pytest.FixtureRequest) -> tuple[Any, Any, Any]:
    """(family, model, processor)."""
    make, adapter = FAMILIES[request.param]
    model, processor = make()
    return adapter(model, processor), model, processor


def look_at(
    family: Any, kind: MediaKind, pictures: np.ndarray, fps: float, options: VideoOptions = AS_TRAINED
) -> MediaItem:
    """What the engine makes of pictures (F, H, W, 3) at a constant rate, without a file."""
    request = family.decode_request(kind, options, 1)
    total, height, width, _ = pictures.shape
    times = [index / fps for index in range(total)]
    choice = choose_frames(times, total / fps, request.sampling, source_fps=fps)
    chosen = torch.from_numpy(pictures[list(choice.indices)]).permute(0, 3, 1, 2)
    size = request.resize.target_size(len(chosen), height, width)
    frames = VideoFrames(
        kind=kind, pixels=resize_frames(chosen, size, interpolation="bicubic").numpy(), times_s=choice.times_s,
        frame_indices=choice.indices, duration_s=total / fps, source_fps=fps, source_size=(height, width),
        codec="none", container="none", num_frames=total,
    )  # fmt: skip
    grid = family.patch_grid(frames)
    return item_of(frames, grid)


# --------------------------------------------------------------------------------------------------------- sampling


def test_sampled_frames_equal_transformers(loaded: tuple[Any, Any, Any]) -> None:
    """For counts, rates and bounds of every kind at a constant rate, where transformers itself succeeds."""
    family, _, processor = loaded
    video = type(processor.video_processor)()
    rng = np.random.default_rng(0)
    compared = 0
    for _ in range(600):
        total, rate = int(rng.integers(1, 1500)), float(rng.choice([24, 25, 30, 30000 / 1001, 7.5, 1]))
        video.min_frames, video.max_frames = int(rng.integers(1, 6)), int(rng.integers(6, 800))
        video.fps = float(rng.choice([0.1, 0.5, 1, 2, 3.3, 30]))
        family._processor = SimpleNamespace(video_processor=video)
        policy = family.decode_request("video", VideoOptions(), 1).sampling
        ours = choose_frames([i / rate for i in range(total)], total / rate, policy, source_fps=rate)
        assert len(ours.indices) >= 1
        try:
            theirs = video.sample_frames(SimpleNamespace(total_num_frames=total, fps=rate)).tolist()
        except ZeroDivisionError:  # it floors to no frame at all; we look at one
            assert len(ours.indices) == 1
            continue
        if theirs[-1] == total:  # one index too many, past the end: indexing fails there
            assert list(ours.indices) == theirs[:-1]
            continue
        assert list(ours.indices) == theirs, (total, rate, video.fps)
        compared += 1
    family._processor = processor
    assert compared > 400


@pytest.mark.parametrize(("asked", "given"), [(1, 2), (4, 4), (5, 4), (7, 8), (9, 8)])
def test_num_frames_becomes_whole_slots_as_in_transformers(
    loaded: tuple[Any, Any, Any], asked: int, given: int
) -> None:
    family, _, processor = loaded
    policy = family.decode_request("video", VideoOptions(num_frames=asked), 1).sampling
    ours = choose_frames([i / 8 for i in range(50)], 50 / 8, policy, source_fps=8.0)
    assert len(ours.indices) == given
    if asked > 1:
        # The processor's own rate would exclude num_frames.
        bare = type(processor.video_processor)()
        theirs = bare.sample_frames(SimpleNamespace(total_num_frames=50, fps=8.0), num_frames=asked)
        assert list(ours.indices) == theirs.tolist()


def test_a_checkpoint_without_a_rate_is_sampled_as_it_was_trained(loaded: tuple[Any, Any, Any]) -> None:
    family, _, processor = loaded
    family._processor = SimpleNamespace(video_processor=type(processor.video_processor)())
    assert family.decode_request("video", VideoOptions(), 1).sampling.fps == 2.0
    assert family.decode_request("video", VideoOptions(num_frames=4), 1).sampling.fps is None
    family._processor = processor


@pytest.mark.parametrize("options", [{"num_frames": 0}, {"num_frames": -3}, {"fps": 0.0}, {"max_tokens": 0}])
def test_impossible_sampling_is_refused(loaded: tuple[Any, Any, Any], options: dict[str, Any]) -> None:
    with pytest.raises(InvalidMediaOptionError):
        loaded[0].decode_request("video", VideoOptions(**options), 1)


# ------------------------------------------------------------------------------------------------- size and pixels


def test_clip_sizes_equal_transformers(loaded: tuple[Any, Any, Any]) -> None:
    family, _, processor = loaded
    rng = np.random.default_rng(1)
    resize = family.decode_request("video", VideoOptions(), 1).resize
    for _ in range(60):
        count, height, width = int(rng.integers(2, 33)), int(rng.integers(8, 300)), int(rng.integers(8, 300))
        video = torch.zeros(count, 3, height, width, dtype=torch.uint8)
        grid = processor.video_processor(videos=[video], do_sample_frames=False, return_tensors="pt").video_grid_thw
        expected = (grid[0, 1:] * 14).tolist()
        assert list(resize.target_size(count, height, width)) == expected, (count, height, width)


@pytest.mark.parametrize(
    ("options", "most"), [({"max_pixels": 3 * 784}, 3), ({"max_tokens": 8}, 2), ({"max_tokens": 4}, 1)]
)
def test_what_a_request_bounds_stays_bounded(loaded: tuple[Any, Any, Any], options: dict[str, Any], most: int) -> None:
    """max_pixels bounds each frame, max_tokens the whole clip: 4 slots share it."""
    item = look_at(loaded[0], "video", noise_clip(0, num_frames=8, size=(90, 130)).frames, 2.0, VideoOptions(**options))
    assert item.grid.slots == 4
    assert item.grid.cells_per_slot <= most


CLIPS = {
    "odd_size": noise_clip(1, num_frames=7, size=(91, 133)),
    "one_frame": noise_clip(2, num_frames=1, size=(63, 101)),
    "two_frames": noise_clip(3, num_frames=2, size=(57, 58), fps=10.0),
    "many_frames": noise_clip(4, num_frames=41, size=(77, 65), fps=3.0),
    "tiny": noise_clip(5, num_frames=4, size=(9, 13)),
}


@pytest.mark.parametrize("name", CLIPS)
def test_clip_pixels_equal_the_processor(loaded: tuple[Any, Any, Any], name: str) -> None:
    family, _, processor = loaded
    clip = CLIPS[name]
    inputs = prepare_inputs(processor, [clip])
    item = look_at(family, "video", clip.frames, clip.fps)
    assert [list(item.grid.patch_grid)] == inputs["video_grid_thw"].tolist()
    ours = family.patch_batch(item, 0, item.grid.slots).pixel_values
    assert torch.equal(ours, inputs["pixel_values_videos"])


@pytest.mark.parametrize("size", [(91, 133), (14, 200), (300, 301), (56, 56)])
def test_picture_pixels_equal_the_processor(loaded: tuple[Any, Any, Any], size: tuple[int, int]) -> None:
    family, _, processor = loaded
    picture = noise_picture(6, size=size)
    inputs = prepare_inputs(processor, [picture])
    item = look_at(family, "image", picture[None], 1.0)
    assert [list(item.grid.patch_grid)] == inputs["image_grid_thw"].tolist()
    assert torch.equal(family.patch_batch(item, 0, 1).pixel_values, inputs["pixel_values"])


# -------------------------------------------------------------------------------------------------------- positions


def blank_clip(slots: int, height: int, width: int, *, fps: float = 2.0, total: int | None = None) -> MediaItem:
    """An item of this many slots and cells, its frames at the starts of equal parts of `total` pictures."""
    count = slots * 2
    total = total or count
    indices = [int(i * total / count) for i in range(count)]
    frames = VideoFrames(
        kind="video", pixels=np.zeros((count, 3, height * 28, width * 28), np.uint8),
        times_s=tuple(i / fps for i in indices), frame_indices=tuple(indices), duration_s=total / fps, source_fps=fps,
        source_size=(height, width), codec="none", container="none", num_frames=total,
    )  # fmt: skip
    return as_item("video", frames)


def blank_picture(height: int, width: int) -> MediaItem:
    frames = VideoFrames(
        kind="image", pixels=np.zeros((1, 3, height * 28, width * 28), np.uint8), times_s=(0.0,), frame_indices=(0,),
        duration_s=0.0, source_fps=None, source_size=(height, width), codec="none", container="none", num_frames=1,
    )  # fmt: skip
    return as_item("image", frames)


def as_item(kind: MediaKind, frames: VideoFrames) -> MediaItem:
    grid = PatchGrid.from_frames(frames, temporal_patch_size=2, patch_size=14, merge_size=2)
    return item_of(frames, grid)


def lay_out(items: list[MediaItem], texts: list[int]) -> tuple[int, list[DenseSpan], list[int]]:
    """Length, spans and token types of texts[0] text rows, an item, texts[1] text rows, an item, ..."""
    types, spans = [0] * texts[0], []
    for index, (item, after) in enumerate(zip(items, texts[1:], strict=True)):
        cells = np.arange(item.grid.slots * item.grid.cells_per_slot)
        spans.append(DenseSpan(item=index, start=len(types), cells=cells))
        types += [1 if item.kind == "image" else 2] * len(cells) + [0] * after
    return len(types), spans, types


def their_seconds(item: MediaItem) -> float:
    """What transformers' processor says of a clip of which these frames were sampled."""
    frames = item.frames
    metadata = VideoMetadata(
        total_num_frames=frames.num_frames, fps=frames.source_fps, frames_indices=list(frames.frame_indices)
    )
    return 2 / metadata.sampled_fps


@pytest.mark.parametrize("seed", range(10))
def test_positions_equal_get_rope_index(loaded: tuple[Any, Any, Any], seed: int) -> None:
    """Random arrangements of pictures, clips of many rates and text, with items side by side but for their marks."""
    family, model, _ = loaded
    rng = np.random.default_rng(seed)
    items: list[MediaItem] = []
    for _ in range(int(rng.integers(1, 6))):
        height, width = (int(x) for x in rng.integers(1, 7, 2))
        if rng.random() < 0.4:
            items.append(blank_picture(height, width))
            continue
        slots = int(rng.integers(1, 9))
        total = slots * 2 + int(rng.integers(0, 90))
        fps = float(rng.choice([0.5, 1, 2, 3, 8, 24, 25, 30000 / 1001, 60]))
        items.append(blank_clip(slots, height, width, fps=fps, total=total))
    length, spans, types = lay_out(items, [int(x) for x in rng.integers(1, 9, len(items) + 1)])
    clips = [item for item in items if item.kind == "video"]
    grids = {
        kind: torch.tensor([item.grid.patch_grid for item in items if item.kind == kind]) for kind in ("image", "video")
    }
    expected, _ = model.model.get_rope_index(
        torch.zeros(1, length, dtype=torch.long), mm_token_type_ids=torch.tensor([types]),
        image_grid_thw=grids["image"], video_grid_thw=grids["video"],
        second_per_grid_ts=torch.tensor([their_seconds(item) for item in clips]),
    )  # fmt: skip
    ours = family.positions(length, spans, items)
    assert ours.dtype == np.int64
    assert ours.tolist() == expected[:, 0].tolist()


@pytest.fixture(scope="module")
def family() -> Any:
    return Qwen25VL(*make_qwen2_5_vl())


def test_worked_example_of_positions(family: Any) -> None:
    item = blank_clip(2, 1, 2, fps=4.0, total=12)  # parts of 3 pictures at 4 a second: slots 1.5 s apart
    assert seconds_per_slot(item.frames, 2) == pytest.approx(1.5)
    length, spans, _ = lay_out([item], [1, 1])
    expected = [[0, 1, 1, 4, 4, 3], [0, 1, 1, 1, 1, 3], [0, 1, 2, 1, 2, 3]]
    assert family.positions(length, spans, [item]).tolist() == expected


@pytest.mark.parametrize(
    ("fps", "ticks"), [(1, [0, 4, 8, 12, 16]), (2, [0, 2, 4, 6, 8]), (4, [0, 1, 2, 3, 4]), (8, [0, 0, 1, 1, 2])]
)
def test_ticks_are_cut_once_and_not_per_slot(family: Any, fps: int, ticks: list[int]) -> None:
    """Seconds per slot cut to a whole number would put every slot of a fast clip at 0."""
    assert family.slot_ticks(blank_clip(5, 1, 1, fps=float(fps))).tolist() == ticks


def test_seconds_per_slot_follow_the_times_of_a_cut_clip(family: Any) -> None:
    """6 of 7 pictures are parts of 7/12 s; frames taken from 2 s of a longer clip are as far apart as they are."""
    seven = noise_clip(7, num_frames=7, size=(56, 56)).frames
    assert seconds_per_slot(look_at(family, "video", seven, 2.0).frames, 2) == 2 / (6 / 7 * 2)
    long = noise_clip(8, num_frames=80, size=(56, 56)).frames
    item = look_at(family, "video", long, 8.0, VideoOptions(start_s=3.0, end_s=5.0, fps=4.0))
    assert len(item.frames.times_s) == 8
    assert seconds_per_slot(item.frames, 2) == pytest.approx(0.5)
    assert math.isfinite(seconds_per_slot(look_at(family, "video", long[:1], 8.0).frames, 2))


# ------------------------------------------------------------------------------------------------------- end to end

LONG_CLIP = noise_clip(9, num_frames=20, size=(60, 60), fps=1.0)


def test_generated_tokens_follow_the_largest_position(checkpoint: Callable[[str], Path]) -> None:
    """A long clip's ticks run past the text after it; the model's own rope delta says where decoding goes on."""
    folder = checkpoint("qwen2_5_vl")
    turn: list[Any] = [LONG_CLIP, "?"]
    expected = answer(folder, turn, 8)
    with local_engine(folder) as local:
        prompt = local.lay_out([as_message(turn)]).prompt
        ours = local.answer([as_message(turn)], sampling=local.everything(8))
    assert prompt.next_position > prompt.positions[:, -1].max() + 1
    model, processor = load_oracle(folder)
    with torch.inference_mode():
        model(**prepare_inputs(processor, turn))
    assert prompt.next_position - len(prompt) == int(model.model.rope_deltas)
    assert ours.token_ids == expected.token_ids
    assert worst_error(ours.logprobs, expected.logits) < 1e-4


@pytest.mark.parametrize(("name", "tie"), [("qwen2_5_vl", True), ("qwen2_5_vl", False), ("qwen2_vl", False)])
def test_sharded_checkpoints_with_tied_and_untied_heads(tmp_path: Path, name: str, tie: bool) -> None:
    model, processor = FAMILIES[name][0](seed=5, tie=tie)
    model.save_pretrained(tmp_path, max_shard_size="200KB")
    processor.save_pretrained(tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    turn: list[Any] = [noise_clip(10, num_frames=5, size=(70, 90)), "and", noise_picture(11, size=(60, 60)), "?"]
    expected = answer(tmp_path, turn, 4)
    with local_engine(tmp_path) as local:
        ours = local.answer([as_message(turn)], sampling=local.everything(4))
    assert ours.token_ids == expected.token_ids
    assert worst_error(ours.logprobs, expected.logits) < 1e-4


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("qwen2_5_vl", torch.bfloat16), ("qwen2_5_vl", torch.float16), ("qwen2_vl", torch.bfloat16)],
)
def test_half_precision_checkpoints_answer(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    """The declared dtype is taken, or bfloat16 where a CPU cannot; logits stay near those in float32."""
    model, processor = FAMILIES[name][0]()
    model.to(dtype).save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    turn: list[Any] = [noise_clip(12, num_frames=6, size=(90, 90)), "What?"]
    expected = answer(tmp_path, turn, 1)
    with local_engine(tmp_path, dtype="auto") as local:
        assert local.assembled.info.dtype in ("bfloat16", str(dtype).removeprefix("torch."))
        ours = local.answer([as_message(turn)], sampling=local.everything(4))
    assert torch.isfinite(ours.logprobs).all()
    assert worst_error(ours.logprobs[:1], expected.logits[:1]) < 0.5


def test_layers_of_an_unknown_kind_are_refused() -> None:
    """Rather than attended as if they were of a known one."""
    model, processor = make_qwen2_5_vl()
    model.config.text_config.layer_types = ["full_attention", "chunked_attention", "chunked_attention"]
    with pytest.raises(EngineStartError, match="chunked"):
        Qwen25VL(model, processor)
