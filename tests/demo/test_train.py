"""Training learns, and a run that was interrupted ends as if it had not been."""

from __future__ import annotations

import random
from pathlib import Path
from statistics import mean

import pytest
import torch

from demo.draws import FROM_NOTHING, ONWARD, draw_level, find_stage
from demo.export import export_model
from demo.learner import Learner, Plan
from demo.net import make_model
from demo.quick_score import score_quickly
from demo.stage import LEVELS
from tests.cuda import need_cuda

STEPS = 8


def plan() -> Plan:
    return Plan(clips=400, batch=3, rate=2e-3, seed=7, curriculum=FROM_NOTHING)


@pytest.fixture(scope="module")
def straight() -> tuple[Learner, list[float]]:
    """From nothing, without a break, and the loss of each step."""
    learner = Learner.begin(plan(), start=None)
    return learner, [learner.take_step().answers for _ in range(STEPS)]


def test_a_model_from_nothing_learns(straight: tuple[Learner, list[float]]) -> None:
    """It begins with the loss of a guess over the vocabulary and falls by far within eight steps."""
    _, losses = straight
    assert losses[0] == pytest.approx(6.56, abs=0.3)
    assert mean(losses[-3:]) < losses[0] - 0.5


@pytest.mark.cuda
def test_a_model_learns_on_a_card() -> None:
    """The same steps on CUDA, all of whose tensors lie there."""
    need_cuda()
    torch.set_default_device("cuda")
    try:
        learner = Learner.begin(plan(), start=None)
        losses = [learner.take_step().answers for _ in range(STEPS)]
    finally:
        torch.set_default_device("cpu")
    assert {parameter.device.type for parameter in learner.model.parameters()} == {"cuda"}
    assert mean(losses[-3:]) < losses[0] - 0.5


def test_a_broken_run_ends_with_the_same_weights(straight: tuple[Learner, list[float]], tmp_path: Path) -> None:
    """Bit for bit: weights, heads and optimisers come back from the state file, draws from seed and step."""
    whole, _ = straight
    first = Learner(plan(), make_model(whole.words, plan().seed), whole.words)
    for _ in range(STEPS - 2):
        first.take_step()
    first.save(tmp_path / "state")
    second = Learner(plan(), make_model(whole.words, 1), whole.words)
    second.load(tmp_path / "state")
    for _ in range(2):
        second.take_step()
    assert (second.step, second.clips) == (whole.step, whole.clips)
    ours, theirs = second.model.state_dict(), whole.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert all(torch.equal(a, b) for a, b in zip(second.heads.parameters(), whole.heads.parameters(), strict=True))


def test_the_curriculum_rises() -> None:
    """From nothing training begins with stills alone; the mix of everything comes last."""
    rng = random.Random(0)
    assert {draw_level(rng, find_stage(FROM_NOTHING, 0.05)) for _ in range(50)} == {"still"}
    assert "all" not in {draw_level(rng, find_stage(FROM_NOTHING, 0.5)) for _ in range(200)}
    for curriculum in (FROM_NOTHING, ONWARD):
        last = curriculum[-1].mix
        assert last[LEVELS.index("all")] == max(last)
        assert sum(stage.share for stage in curriculum) == pytest.approx(1)
        assert [draw_level(rng, find_stage(curriculum, 1.0)) for _ in range(200)].count("all") > 60


def test_what_was_trained_is_scored_and_exported(straight: tuple[Learner, list[float]], tmp_path: Path) -> None:
    """A quick score counts every question once, for both regimes; the export is a folder that transformers loads."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    learner, _ = straight
    scores = list(score_quickly(learner.tower, learner.reader, learner.words, clips=24))
    assert [regime for regime, _ in scores] == ["none", "gate"]
    totals = [sum(asked for _, asked in counts.values()) for _, counts in scores]
    assert totals[0] == totals[1] > 100
    learner.save_checkpoint(tmp_path / "trained")
    export_model(tmp_path / "trained", tmp_path / "model")
    model = AutoModelForImageTextToText.from_pretrained(tmp_path / "model")
    assert model.dtype == torch.bfloat16
    assert AutoProcessor.from_pretrained(tmp_path / "model").tokenizer.eos_token == "<|im_end|>"
