"""InternVL as transformers sees it: which frames, which words, and what is refused at start."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from transformers.video_utils import VideoMetadata

from runner.errors import EngineStartError
from runner.families.internvl import InternVL
from runner.requests import VideoOptions
from tests.checkpoints.internvl import make_internvl
from tests.oracle import noise_clip, noise_picture
from tests.runner.families.looking import look_at
from vision.errors import InvalidMediaOptionError
from vision.sampling import choose_frames


@pytest.fixture(scope="module")
def loaded() -> tuple[InternVL, Any, Any]:
    model, processor = make_internvl()
    return InternVL(model, processor), model, processor


def test_sampled_frames_equal_the_processor(loaded: tuple[InternVL, Any, Any]) -> None:
    family, _, processor = loaded
    rng = np.random.default_rng(0)
    for _ in range(200):
        total, rate = int(rng.integers(1, 2000)), float(rng.choice([24, 25, 30000 / 1001, 1]))
        number = int(rng.integers(1, min(total, 64) + 1))
        policy = family.decode_request("video", VideoOptions(num_frames=number), 1).sampling
        metadata = VideoMetadata(total_num_frames=total, fps=rate, duration=total / rate)
        expected = processor.video_processor.sample_frames(metadata, num_frames=number).tolist()
        times = [index / rate for index in range(total)]
        assert list(choose_frames(times, total / rate, policy, source_fps=rate).indices) == expected[:number]


def test_frames_are_numbered_and_tiles_are_one(loaded: tuple[InternVL, Any, Any]) -> None:
    family, _, _ = loaded
    clip = family.write_item(look_at(family, noise_clip(0, num_frames=9, size=(20, 20)), max_frames=2))
    picture = "<img><IMG_CONTEXT></img>"
    assert clip.text == f"Frame1: {picture}\nFrame2: {picture}"
    assert [run.tolist() for run in clip.runs] == [[*range(9)], [*range(9, 18)]]
    image = family.write_item(look_at(family, noise_picture(0, size=(30, 90))))
    assert (image.text, [len(run) for run in image.runs]) == (picture, [4 * 9])


def test_sizes_cannot_be_asked_for(loaded: tuple[InternVL, Any, Any]) -> None:
    with pytest.raises(InvalidMediaOptionError, match="48x48"):
        loaded[0].decode_request("video", VideoOptions(max_pixels=9), 1)


def test_what_is_not_computed_is_refused_at_start() -> None:
    model, processor = make_internvl(text="gemma")
    with pytest.raises(EngineStartError, match="text decoder 'gemma'"):
        InternVL(model, processor)
    model, processor = make_internvl()
    model.config.vision_feature_layer = -2
    with pytest.raises(EngineStartError, match="vision_feature_layer"):
        InternVL(model, processor)
