"""Law 1: with EVS off, greedy tokens and every step's logits equal transformers', and the comparison would notice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoints import BUILDERS
from tests.harness import LocalEngine, local_engine
from tests.oracle import Part, answer, as_message, noise_clip, noise_picture, worst_error

MAX_TOKENS = 8
TOLERANCE = 1e-4

CLIP = noise_clip(1, num_frames=7, size=(90, 130))
LONG = noise_clip(2, num_frames=12, size=(90, 130))
TWIN = noise_clip(7, num_frames=5, size=(70, 90))
SMALL = noise_clip(3, num_frames=4, size=(70, 66), fps=4.0)
PICTURE = noise_picture(4, size=(100, 77))
WIDE = noise_picture(5, size=(64, 190))

TURNS: dict[str, list[Part]] = {
    "text": ["What is in the hat on the table?"],
    "image": [PICTURE, "What is this?"],
    "clip": [CLIP, "What moves?"],
    "one_frame": [noise_clip(6, num_frames=1, size=(64, 64)), "What?"],
    "two_clips": [CLIP, "and then", SMALL, "which is first?"],
    "same_size_other_length": [CLIP, LONG, "which is longer?"],
    "same_clip_twice": [TWIN, "and again", TWIN, "the same?"],
    "clip_then_image": [CLIP, "or", PICTURE, "?"],
    "image_then_clip": ["See", PICTURE, "and", CLIP, "the same?"],
    "all_mixed": [PICTURE, SMALL, "between", CLIP, WIDE, "say"],
}


@pytest.fixture(scope="module", params=sorted(BUILDERS))
def engine(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]):
    folder = checkpoint(request.param)
    with local_engine(folder) as local:
        yield local, folder


def compare(local: LocalEngine, folder: Path, turn: list[Part]) -> tuple[float, np.ndarray]:
    """Worst logit error over all steps, up to the first token that differs; and which tokens are equal."""
    oracle = answer(folder, turn, MAX_TOKENS)
    ours = local.answer([as_message(turn)], sampling=local.everything(MAX_TOKENS))
    equal = np.array(ours.token_ids) == np.array(oracle.token_ids)
    steps = int(np.argmin(equal)) + 1 if not equal.all() else MAX_TOKENS
    return worst_error(ours.logprobs[:steps], oracle.logits[:steps]), equal


@pytest.mark.parametrize("name", TURNS)
def test_tokens_and_logits_equal_the_oracle(engine: tuple[LocalEngine, Path], name: str) -> None:
    error, equal = compare(*engine, TURNS[name])
    assert error < TOLERANCE
    assert equal.all()


@pytest.mark.parametrize("name", TURNS)
def test_prompt_ids_equal_the_processor(engine: tuple[LocalEngine, Path], name: str) -> None:
    local, folder = engine
    laid = local.lay_out([as_message(TURNS[name])])
    assert laid.prompt.token_ids.tolist() == answer(folder, TURNS[name], 1).prompt_ids


def test_the_oracle_spreads_and_depends_on_positions(
    engine: tuple[LocalEngine, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: one position off by one must fail the very comparison that the others pass."""
    local, folder = engine
    oracle = answer(folder, TURNS["clip"], MAX_TOKENS)
    assert float(oracle.logits.std(-1).min()) >= 1.0
    family = local.assembled.admission.family
    real = type(family).positions

    def shifted(self: object, *arguments: object) -> np.ndarray:
        positions = real(self, *arguments)
        positions[:, positions.shape[1] // 2] += 1
        return positions

    monkeypatch.setattr(type(family), "positions", shifted)
    error, _ = compare(local, folder, TURNS["clip"])
    assert error > TOLERANCE
