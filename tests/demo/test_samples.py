"""The sample clips are what the committed script draws, and their answers are those of its stories."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from demo.mp4 import decode_mp4
from demo.samples import FOLDER, STORIES, write_samples


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawn")
    write_samples(folder)
    return folder


@pytest.mark.parametrize("name", [*STORIES, "cut.mp4", "pan.mp4"])
def test_clips_are_drawn_again(drawn: Path, name: str) -> None:
    """Pixel for pixel, but for what versions of the codec do differently."""
    ours, theirs = (decode_mp4((folder / name).read_bytes()).astype(int) for folder in (drawn, FOLDER))
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).mean() < 1


def test_answers_are_those_of_the_stories(drawn: Path) -> None:
    """The script's answers stand in answers.json, beside those of the two older clips."""
    ours, theirs = (json.loads((folder / "answers.json").read_text()) for folder in (drawn, FOLDER))
    assert set(ours) == set(STORIES)
    assert {name: theirs[name] for name in ours} == ours
    assert set(theirs) - set(ours) == {"mover.mp4", "appears.mp4"}
    assert ours["passes.mp4"]["What does the moving object pass?"] == "a blue square."
