"""Laws 4 and 5: steps of fixed shape give what eager ones give, in every bucket, for all families, EVS off and on,
whatever stands in padding (NaN) and in the tails of pages (large finite values)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from runner import inputs, slots
from runner.config import Speculating
from runner.requests import EvsOptions
from tests.checkpoints import BUILDERS
from tests.harness import LocalEngine, local_engine, rebuilt
from tests.oracle import Part, as_message, noise_clip, noise_picture
from tests.runner.test_history import assert_same
from tests.runner.test_speculation import replay
from vision.towers import padding

TURNS: list[list[Part]] = [
    ["a", noise_clip(1, num_frames=5, size=(70, 100)), "why?"],
    ["only text, and some more of it"],
    [noise_picture(2, size=(64, 80)), "and this?"],
    ["short"],
    ["five"],
]
MAX_TOKENS = 20
EXPECTED = {("graph", "decode"), ("eager", "prefill")}


@pytest.fixture(scope="module", params=sorted(BUILDERS))
def eager(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]) -> Iterator[tuple[LocalEngine, Path]]:
    folder = checkpoint(request.param)
    with local_engine(folder, graphs="never") as local:
        yield local, folder


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "PADDING", torch.nan)
    monkeypatch.setattr(slots, "TAIL", 1e4)
    monkeypatch.setattr(padding, "PIXELS", torch.nan)


@pytest.mark.parametrize("way", ["dense", "pruned", "drafted"])
def test_graph_is_eager(eager: tuple[LocalEngine, Path], poison: None, way: str) -> None:
    """Batches of 5, 4, 3, 2 and 1 sequences, which end one after the other, in graphs of 6, 4, 2 and 1, by length and,
    where drafts are tried, by depth."""
    shared, folder = eager
    local = rebuilt(shared, folder, graphs="never")
    evs = EvsOptions(method="gate", threshold=0.9, refresh=4) if way == "pruned" else None
    lengths = [MAX_TOKENS - 3 * number for number in range(len(TURNS))]
    local.engine.runner.backend.memory.fill_(1e4)  # what was in a page before is large, too
    alone = [
        local.answer([as_message(turn)], sampling=local.everything(length), evs=evs)
        for turn, length in zip(TURNS, lengths, strict=True)
    ]
    guessing = Speculating(method="ngram" if way == "drafted" else "none", max_tokens=4)
    engine = rebuilt(local, folder, graphs="always", max_num_seqs=6, speculating=guessing)
    engine.engine.runner.backend.memory.fill_(1e4)
    names = [
        engine.submit([as_message(turn)], sampling=engine.everything(length), evs=evs)
        for turn, length in zip(TURNS, lengths, strict=True)
    ]
    known = {name: answer.token_ids for name, answer in zip(names, alone, strict=True)}
    speculation = replay(engine, known) if way == "drafted" else engine.engine.speculation
    engine.run()
    routes = engine.engine.runner.routes
    assert {("graph", "decode"), ("eager", "prefill")} <= set(routes) <= {*EXPECTED, ("eager", "other_depth")}
    assert set(engine.engine.runner.encoder.routes) == {("graph", "packed")}
    if way == "pruned":  # pruning does not switch graphs off
        assert {mode for mode, _ in engine.engine.runner.encoder.patches} & {"reuse", "full"}
    assert (speculation.counters["accepted"] > 10) == (way == "drafted")
    assert routes["graph", "decode"] >= (4 if way == "drafted" else MAX_TOKENS - 2)
    for name, reference in zip(names, alone, strict=True):
        assert not engine.answers[name, 0].logprobs.isnan().any()
        assert_same(engine.answers[name, 0], reference)
    assert {mode for mode, _ in local.engine.runner.routes} == {"eager"}


def test_clips_that_are_cut_are_encoded_eagerly(eager: tuple[LocalEngine, Path], poison: None) -> None:
    """What one part leaves for the next has no place in a bucket; the reason is counted, and the answer the same."""
    shared, folder = eager
    evs = EvsOptions(method="gate", threshold=0.9, refresh=4)
    turn = [as_message(TURNS[0])]
    engine = rebuilt(shared, folder, graphs="always", max_encoder_patches=1)
    found = engine.answer(turn, sampling=engine.everything(4), evs=evs)
    assert_same(found, shared.answer(turn, sampling=shared.everything(4), evs=evs))
    runner = engine.engine.runner.encoder
    reuses = any(mode == "reuse" for mode, _ in runner.patches)
    assert set(runner.routes) <= {("graph", "packed"), ("eager", "cut_clip")}
    assert (("eager", "cut_clip") in runner.routes) <= reuses
