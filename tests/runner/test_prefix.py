"""Ranges of rows that see each other, through the whole engine: never cut, never starved, refused when they cannot fit;
and windows, behind which pages are given back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from attention import sdpa
from runner.errors import EngineStartError, RequestError
from runner.requests import EvsOptions, SamplingParams
from tests.checkpoints.base import save
from tests.checkpoints.gemma3 import make_gemma3
from tests.checkpoints.paligemma import make_paligemma
from tests.checkpoints.qwen2_5_vl import make_qwen2_5_vl
from tests.harness import LocalEngine, local_engine, rebuilt
from tests.oracle import Part, answer, as_message, noise_clip, noise_picture, worst_error
from tests.runner.test_history import assert_same

TOLERANCE = 1e-4
CLIP = noise_clip(1, num_frames=6, size=(70, 100))
PICTURE, OTHER = noise_picture(2, size=(64, 80)), noise_picture(3, size=(50, 50))
TURN: list[Part] = ["a", CLIP, "b", PICTURE, "why?"]


@pytest.fixture(scope="module", params=["gemma3", "paligemma"])
def engine(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]) -> Iterator[tuple[LocalEngine, Path]]:
    folder = checkpoint(request.param)
    with local_engine(folder) as local:
        yield local, folder


@pytest.fixture(scope="module")
def pali(checkpoint: Callable[[str], Path]) -> Iterator[tuple[LocalEngine, Path]]:
    folder = checkpoint("paligemma")
    with local_engine(folder) as local:
        yield local, folder


@pytest.mark.parametrize("method", ["none", "uniform"])
def test_no_step_cuts_a_range(engine: tuple[LocalEngine, Path], method: str) -> None:
    local, folder = engine
    chat = [as_message(TURN)]
    evs = EvsOptions(method="uniform", rate=0.5) if method == "uniform" else EvsOptions(method="none")
    least = local.smallest_step(chat, evs)
    small = rebuilt(local, folder, max_num_seqs=2, max_num_batched_tokens=least)
    names = [small.submit(chat, sampling=small.everything(3), evs=evs) for _ in range(2)]
    cuts = 0
    while small.engine.has_work:
        report = small.engine.step()
        small.receive(report.deltas)
        for work in report.plan.rows:
            ranges = work.sequence.prompt.ranges
            cuts += sum(start < edge < stop for start, stop in ranges for edge in (work.start, work.stop))
            assert work.stop - work.start <= least
    assert ranges and cuts == 0
    assert_same(small.answers[names[0], 0], small.answers[names[1], 0])


def test_a_range_longer_than_a_step_is_refused_unless_pruning_shortens_it(engine: tuple[LocalEngine, Path]) -> None:
    local, folder = engine
    chat = [as_message([CLIP, "?"])]
    pruned = EvsOptions(method="random", rate=0.8, seed=1)
    least, short = local.smallest_step(chat), local.smallest_step(chat, pruned)
    small = rebuilt(local, folder, max_num_seqs=1, max_num_batched_tokens=least - 1)
    with pytest.raises(RequestError, match="max-num-batched-tokens") as caught:
        small.submit(chat, sampling=small.everything(1))
    assert (caught.value.kind, caught.value.code) == ("invalid", "context_length_exceeded")
    assert not small.engine.has_work
    if short < least:  # with the first frame whole, a frame stays as long as it was
        small.answer(chat, sampling=small.everything(1), evs=pruned)
    exact = rebuilt(local, folder, max_num_seqs=1, max_num_batched_tokens=least)
    assert_same(exact.answer(chat, sampling=exact.everything(2)), local.answer(chat, sampling=local.everything(2)))


def test_a_backend_without_ranges_is_not_used(pali: tuple[LocalEngine, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner believes what a backend declares, and nothing else."""
    local, folder = pali
    monkeypatch.setattr(sdpa, "CAPABILITIES", replace(sdpa.CAPABILITIES, mm_prefix=False))
    with pytest.raises(EngineStartError, match="paligemma reads pictures both ways"):
        rebuilt(local, folder)


def test_a_full_house_of_decodes_gives_way(pali: tuple[LocalEngine, Path]) -> None:
    """The range takes a whole step: without a reservation it would wait until all others have ended."""
    local, folder = pali
    chat = [as_message([PICTURE, "what?"])]
    reference = local.answer(chat, sampling=local.everything(3))
    tokens = local.smallest_step(chat)
    crowded = rebuilt(local, folder, max_num_seqs=9, max_num_batched_tokens=tokens)
    text = [as_message(["hm"])]
    plain = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    others = [crowded.submit(text, sampling=plain) for _ in range(8)]
    for _ in range(6):
        crowded.step()
    name = crowded.submit(chat, sampling=crowded.everything(3))
    for _ in range(8):
        crowded.step()
    assert crowded.answers[name, 0].finish_reason == "length"
    assert all(crowded.answers[other, 0].finish_reason is None for other in others)
    crowded.run()
    assert_same(crowded.answers[name, 0], reference)
    alone = local.answer(text, sampling=plain).token_ids
    assert [crowded.answers[other, 0].token_ids for other in others] == [alone] * 8


def test_encodings_that_are_read_together_must_fit_together(pali: tuple[LocalEngine, Path]) -> None:
    local, folder = pali
    one = 16 * 64 * 4
    small = rebuilt(local, folder, encoder_cache_bytes=2 * one)
    with pytest.raises(RequestError, match="reads all pictures at once") as caught:
        small.submit([as_message([PICTURE, OTHER, noise_picture(4, size=(9, 9)), "?"])], sampling=small.everything(1))
    assert caught.value.kind == "too_large"
    twice = [as_message([PICTURE, OTHER, PICTURE, "?"])]  # the same picture is kept once
    assert_same(small.answer(twice, sampling=small.everything(2)), local.answer(twice, sampling=local.everything(2)))


def test_two_who_need_all_the_room_do_not_wait_for_each_other(pali: tuple[LocalEngine, Path]) -> None:
    """While a first one used the store a second one came to hold half of what it needs; then one of higher priority
    takes the other half."""
    local, folder = pali
    small = rebuilt(local, folder, encoder_cache_bytes=2 * 16 * 64 * 4, max_encoder_patches=16, max_num_seqs=3)
    pairs = [[noise_picture(s, size=(20, 20)), noise_picture(s + 1, size=(20, 20)), "?"] for s in (5, 7)]
    chats = [[as_message([PICTURE, "?"])], [as_message(pairs[0])], [as_message(pairs[1])]]
    names = [small.submit(chat, sampling=small.everything(2)) for chat in chats[:2]]
    small.step()
    names.append(small.submit(chats[2], sampling=small.everything(2), priority=-1))
    small.run(max_steps=60)
    for name, chat in zip(names, chats, strict=True):
        assert_same(small.answers[name, 0], local.answer(chat, sampling=local.everything(2)))


# ------------------------------------------------------------------------------------------------------------ windows


def error_of(local: LocalEngine, folder: Path, turn: list[Part], tokens: int) -> float:
    ours = local.answer([as_message(turn)], sampling=local.everything(tokens))
    oracle = answer(folder, turn, tokens)
    assert ours.token_ids == oracle.token_ids
    return worst_error(ours.logprobs, oracle.logits)


def test_a_window_smaller_than_a_picture(tmp_path: Path) -> None:
    """In Gemma 3 the window holds inside a picture, too."""
    save(tmp_path, *make_gemma3(window=5))
    with local_engine(tmp_path) as local:
        assert error_of(local, tmp_path, TURN, 3) < TOLERANCE


def test_qwen_with_windows(tmp_path: Path) -> None:
    """Some of Qwen2.5's checkpoints have them in their later layers; no picture is exempt."""
    save(tmp_path, *make_qwen2_5_vl())
    config = json.loads((tmp_path / "config.json").read_text())
    kinds = ["full_attention", "sliding_attention", "sliding_attention"]
    config["text_config"] |= {"use_sliding_window": True, "sliding_window": 6, "layer_types": kinds}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with local_engine(tmp_path) as local:
        assert local.assembled.loaded.family.shape.layers[2].window == 6
        assert error_of(local, tmp_path, TURN, 6) < TOLERANCE


def test_paligemma_2(tmp_path: Path) -> None:
    """Bounded scores and logits; windows that do not hold inside the prompt, but do behind it."""
    text = {
        "model_type": "gemma2", "num_key_value_heads": 2, "sliding_window": 8, "query_pre_attn_scalar": 20,
        "attn_logit_softcapping": 4.0, "final_logit_softcapping": 6.0,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    }  # fmt: skip
    save(tmp_path, *make_paligemma(text=text))
    with local_engine(tmp_path) as local:
        assert error_of(local, tmp_path, [CLIP, "what moves?"], 6) < TOLERANCE
        assert error_of(local, tmp_path, ["only words"], 3) < TOLERANCE


def test_pages_that_no_layer_sees_are_given_back(tmp_path: Path) -> None:
    """Two answers in memory that would hold one, without a preemption; and they are what they are with all pages."""
    save(tmp_path, *make_gemma3(layer_types=["sliding_attention"] * 3))
    with local_engine(tmp_path) as local:
        assert error_of(local, tmp_path, TURN, 6) < TOLERANCE
        chat = [as_message([PICTURE, "what is this, and why?"])]
        reference = local.answer(chat, sampling=local.everything(70))
        prompt_pages = -(-(reference.usage.prompt_tokens + 1) // 16)
        page_bytes = local.engine.runner.backend.layout.page_bytes
        pages = -(-(reference.usage.prompt_tokens + 70) // 16) + 1
        tight = rebuilt(local, tmp_path, kv_memory_bytes=pages * page_bytes)
        names = [tight.submit(chat, sampling=tight.everything(70)) for _ in range(2)]
        held = []
        while tight.engine.has_work:
            tight.step()
            tight.engine.scheduler.check_integrity()
            held.append(tight.assembled.pages.num_pages - tight.assembled.pages.num_free)
        assert pages < 2 * -(-(reference.usage.prompt_tokens + 70) // 16)
        assert tight.engine.scheduler.events["preemptions"] == 0
        assert max(held) <= 2 * prompt_pages and max(held[len(held) // 2 :]) <= 4
        for name in names:
            assert_same(tight.answers[name, 0], reference)
