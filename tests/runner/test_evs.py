"""Pruning, through the whole engine: laws 2, 3 and 4 for every family and method; a repeated question repeats no
work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evs.count import count_kept
from runner.admission import Laid
from runner.errors import RequestError
from runner.requests import EvsOptions, VideoOptions
from tests.checkpoints import BUILDERS
from tests.harness import LocalEngine, local_engine, rebuilt
from tests.oracle import Clip, Part, answer, as_message, noise_clip, noise_picture, worst_error
from tests.runner.test_history import assert_same

MAX_TOKENS = 5
TOLERANCE = 1e-4
METHODS = {
    "gate": EvsOptions(method="gate", encoder="full"),
    "evs": EvsOptions(method="evs", rate=0.6),
    "uniform": EvsOptions(method="uniform", rate=0.6),
    "random": EvsOptions(method="random", rate=0.6, seed=3),
}


def mover(seed: int, *, num_frames: int, size: tuple[int, int] = (96, 160)) -> Clip:
    """A still, textured background with one bright square that moves: most cells are worth dropping."""
    frames = np.repeat(noise_clip(seed, num_frames=1, size=size).frames, num_frames, axis=0)
    for number, frame in enumerate(frames):
        left = 10 + 12 * number % (size[1] - 30)
        frame[20:50, left : left + 20] = (250, 240, 20)
    return Clip(frames=frames, fps=2.0)


MOVER, OTHER = mover(1, num_frames=8), mover(2, num_frames=5, size=(70, 100))
PICTURE = noise_picture(4, size=(80, 96))
TURNS: dict[str, list[Part]] = {
    "clip": [MOVER, "What moves?"],
    "two_clips": [MOVER, "and", OTHER, "which?"],
    "clip_then_image": ["a", MOVER, "b", PICTURE, "?"],
    "image_then_clip": [PICTURE, "then", OTHER, "?"],
}


@pytest.fixture(scope="module", params=sorted(BUILDERS))
def engine(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]) -> Iterator[tuple[LocalEngine, Path]]:
    folder = checkpoint(request.param)
    with local_engine(folder) as local:
        yield local, folder


def kept_columns(local: LocalEngine, turn: list[Part], laid: Laid) -> np.ndarray:
    """Of the dense prompt's rows, those that are text, structural, or cells that the laid prompt's items keep."""
    dense = local.lay_out([as_message(turn)], EvsOptions(method="none")).prompt
    keep = dense.rank < 0
    for index, item in enumerate(laid.items):
        rows = (dense.item == index) & (dense.rank >= 0)
        keep[rows] = item.selection.keep.reshape(-1)[dense.rank[rows]]
    return keep


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", TURNS)
def test_the_untouched_model_gives_the_same_on_the_pruned_inputs(
    engine: tuple[LocalEngine, Path], name: str, method: str
) -> None:
    """Law 3, with its negative control in the counts: something was dropped, and law 2 on what was kept."""
    local, folder = engine
    chat = [as_message(TURNS[name])]
    laid = local.lay_out(chat, METHODS[method])
    keep = kept_columns(local, TURNS[name], laid)
    assert keep.sum() == len(laid.prompt)
    assert method == "gate" or len(laid.prompt) < len(keep)  # a coarse grid may change everywhere at once
    oracle = answer(folder, TURNS[name], MAX_TOKENS, keep=keep)
    ours = local.answer(chat, sampling=local.everything(MAX_TOKENS), evs=METHODS[method])
    assert ours.token_ids == oracle.token_ids
    assert worst_error(ours.logprobs, oracle.logits) < TOLERANCE
    kept = sum(item.selection.kept for item in laid.items if item.kind == "video")
    assert ours.usage.evs is not None
    assert ours.usage.evs.kept == kept == sum(map(sum, ours.usage.evs.kept_per_slot))
    assert ours.usage.prompt_tokens == len(laid.prompt)


def test_pruning_changes_the_answers_logits(engine: tuple[LocalEngine, Path]) -> None:
    """The comparison above would notice: dense logits are not the pruned ones."""
    local, folder = engine
    dense = answer(folder, TURNS["clip"], 1)
    ours = local.answer([as_message(TURNS["clip"])], sampling=local.everything(1), evs=METHODS["uniform"])
    assert worst_error(ours.logprobs, dense.logits) > TOLERANCE


@pytest.mark.parametrize("method", ["gate", "evs"])
def test_pruned_prompts_in_chunks_batches_and_after_preemption(engine: tuple[LocalEngine, Path], method: str) -> None:
    """Law 4 with EVS on."""
    local, folder = engine
    chat = [as_message(TURNS["clip_then_image"])]
    reference = local.answer(chat, sampling=local.everything(MAX_TOKENS), evs=METHODS[method])
    least = local.smallest_step(chat, METHODS[method])
    for tokens, patches in ((max(1, least), 1), (max(7, least), 100), (max(23, least), 10_000)):
        other = rebuilt(local, folder, max_num_seqs=1, max_num_batched_tokens=tokens, max_encoder_patches=patches)
        assert_same(other.answer(chat, sampling=other.everything(MAX_TOKENS), evs=METHODS[method]), reference)
    page_bytes = local.engine.runner.backend.layout.page_bytes
    pages = 2 * -(-(reference.usage.prompt_tokens + 1) // 16) + 3
    tight = rebuilt(local, folder, kv_memory_bytes=pages * page_bytes, encoder_cache_bytes=1 << 20)
    ids = [tight.submit(chat, sampling=tight.everything(60), evs=METHODS[method]) for _ in range(2)]
    tight.run()
    assert tight.engine.scheduler.events["preemptions"] > 0
    for name in ids:
        assert_same(tight.answers[name, 0], reference)


@pytest.mark.parametrize("method", METHODS)
def test_a_repeated_question_decodes_and_encodes_nothing(engine: tuple[LocalEngine, Path], method: str) -> None:
    """Nor where no computed prompt is kept."""
    local, folder = engine
    fresh = rebuilt(local, folder, prefix_cache_bytes=0)
    chat = [as_message(TURNS["two_clips"])]
    first = fresh.answer(chat, sampling=fresh.everything(3), evs=METHODS[method])
    before = (fresh.media_events(), fresh.encoder_events())
    second = fresh.answer(chat, sampling=fresh.everything(3), evs=METHODS[method])
    assert second.token_ids == first.token_ids
    assert second.usage == first.usage
    assert fresh.media_events()["misses"] == before[0]["misses"]
    assert fresh.encoder_events()["misses"] == before[1]["misses"]
    assert fresh.encoder_events()["hits"] == before[1]["hits"] + 2


# ------------------------------------------------------------------------------------- one family is enough for these


@pytest.fixture(scope="module")
def qwen(checkpoint: Callable[[str], Path]) -> Iterator[tuple[LocalEngine, Path]]:
    folder = checkpoint("qwen3_vl")
    with local_engine(folder) as local:
        yield local, folder


AWKWARD: dict[str, Clip] = {
    "one_frame": noise_clip(1, num_frames=1, size=(64, 96)),
    "two_frames": noise_clip(2, num_frames=2, size=(64, 96)),
    "three_slots": noise_clip(3, num_frames=6, size=(64, 96)),
    "static": Clip(frames=np.repeat(noise_clip(4, num_frames=1, size=(96, 128)).frames, 12, axis=0), fps=2.0),
    "black": Clip(frames=np.zeros((8, 64, 64, 3), np.uint8), fps=2.0),
    "odd_shape": noise_clip(6, num_frames=7, size=(101, 67)),
    "fade": Clip(frames=np.stack([np.full((64, 96, 3), 20 + 2 * i, np.uint8) for i in range(16)]), fps=2.0),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_clips_are_answered_as_the_oracle_does(qwen: tuple[LocalEngine, Path], name: str, method: str) -> None:
    local, folder = qwen
    turn: list[Part] = [AWKWARD[name], "?"]
    laid = local.lay_out([as_message(turn)], METHODS[method])
    oracle = answer(folder, turn, 3, keep=kept_columns(local, turn, laid))
    ours = local.answer([as_message(turn)], sampling=local.everything(3), evs=METHODS[method])
    assert worst_error(ours.logprobs, oracle.logits) < TOLERANCE
    assert ours.token_ids == oracle.token_ids


def test_a_static_clip_keeps_slot_0_and_floors(qwen: tuple[LocalEngine, Path]) -> None:
    local, _ = qwen
    usage = local.answer([as_message([AWKWARD["static"], "?"])], evs=METHODS["gate"]).usage.evs
    assert usage is not None
    per_slot = usage.cells // usage.slots
    assert usage.kept_per_slot == ((per_slot, *[1] * (usage.slots - 1)),)


@pytest.mark.parametrize("seed", range(12))
def test_one_count_for_random_clips_and_rates(qwen: tuple[LocalEngine, Path], seed: int) -> None:
    """Law 2 and the published count, for any (T, h, w, rate): prompt, mask and usage agree."""
    local, _ = qwen
    rng = np.random.default_rng(seed)
    size = (int(rng.integers(40, 200)), int(rng.integers(40, 200)))
    clip = noise_clip(seed, num_frames=int(rng.integers(1, 14)), size=size)
    rate = round(float(rng.uniform(0, 0.97)), int(rng.integers(1, 4)))
    method = ("evs", "uniform", "random")[seed % 3]
    laid = local.lay_out([as_message([clip, "?"])], EvsOptions(method=method, rate=rate))
    item = laid.items[0]
    wanted = count_kept(item.grid.slots, item.grid.cells_per_slot, rate)
    assert (laid.prompt.item >= 0).sum() == item.selection.kept == wanted
    assert laid.usage.evs is not None
    assert (laid.usage.evs.kept, laid.usage.evs.rate) == (wanted, rate)
    assert laid.usage.video_tokens == wanted


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"method": "evs", "rate": 0.5, "encoder": "reuse"}, "evs.encoder"),
        ({"method": "none", "encoder": "skip"}, "evs.encoder"),
        ({"method": "none", "rate": 0.5}, "evs.rate"),
        ({"method": "evs"}, "evs.rate"),
        ({"method": "evs", "rate": 1.0}, "evs.rate"),
        ({"method": "evs", "rate": -0.1}, "evs.rate"),
        ({"method": "evs", "rate": float("nan")}, "evs.rate"),
        ({"method": "evs", "rate": 0.5, "threshold": 0.1}, "evs.threshold"),
        ({"method": "gate", "threshold": -1.0}, "evs.threshold"),
        ({"method": "gate", "refresh": 0}, "evs.refresh"),
        ({"method": "uniform", "rate": 0.5, "seed": 1}, "evs.seed"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    qwen: tuple[LocalEngine, Path], options: dict[str, Any], param: str
) -> None:
    local, _ = qwen
    with pytest.raises(RequestError) as caught:
        local.submit([as_message([OTHER, "?"])], evs=EvsOptions(**options))
    assert caught.value.param == param


def test_the_last_slots_may_keep_nothing(qwen: tuple[LocalEngine, Path]) -> None:
    """Encoded slot by slot: once all kept cells are, the prompt is read on, whatever slots are left."""
    local, folder = qwen
    chat = [as_message([noise_clip(8, num_frames=16, size=(64, 64)), "?"])]
    for seed in range(4):
        evs = EvsOptions(method="random", rate=0.8, seed=seed)
        reference = local.answer(chat, sampling=local.everything(2), evs=evs)
        slow = rebuilt(local, folder, max_encoder_patches=1)
        assert_same(slow.answer(chat, sampling=slow.everything(2), evs=evs), reference)


def test_a_prompt_that_only_fits_pruned_is_taken(qwen: tuple[LocalEngine, Path]) -> None:
    """E-USAGE-1: the context is checked against the pruned count, for `evs` before anything is encoded."""
    local, folder = qwen
    chat = [as_message(TURNS["clip"])]
    pruned = {name: len(local.lay_out(chat, options).prompt) for name, options in METHODS.items()}
    for name, size in pruned.items():
        small = rebuilt(local, folder, max_model_len=size + 2)
        assert len(small.answer(chat, sampling=small.everything(2), evs=METHODS[name]).token_ids) == 2
        with pytest.raises(RequestError, match=r"context|leaves room"):
            small.submit(chat, sampling=small.everything(3), evs=METHODS[name])
        assert not small.engine.has_work


def test_sampling_options_change_what_is_cached(qwen: tuple[LocalEngine, Path]) -> None:
    """C-KEY-1: other options, other frames; the first options again, the first answer again."""
    local, folder = qwen
    fresh = rebuilt(local, folder)
    message = as_message([noise_clip(9, num_frames=12, size=(64, 96), fps=4.0), "?"])

    def ask(**video: Any) -> tuple[int, list[int]]:
        parts = (type(message.parts[0])(kind="video", source=message.parts[0].source, video=VideoOptions(**video)),)
        chat = [type(message)(role="user", parts=(*parts, message.parts[1]))]
        found = fresh.answer(chat, sampling=fresh.everything(3), evs=METHODS["gate"])
        return found.usage.prompt_tokens, found.token_ids

    first, faster, smaller = ask(fps=1.0), ask(fps=4.0), ask(fps=1.0, max_pixels=64 * 64)
    assert len({first[0], faster[0], smaller[0]}) == 3
    assert ask(fps=1.0) == first


def test_noise_does_not_defeat_the_gate(qwen: tuple[LocalEngine, Path]) -> None:
    """Sensor noise of sigma 3/255 over a still picture: hardly more is kept than of the still picture itself."""
    local, _ = qwen
    rng = np.random.default_rng(0)
    still = AWKWARD["static"].frames.astype(np.float64)
    noisy = Clip(frames=np.clip(still + rng.normal(0, 3, still.shape), 0, 255).astype(np.uint8), fps=2.0)
    quiet, loud = (
        local.answer([as_message([clip, "?"])], evs=METHODS["gate"]).usage.evs for clip in (AWKWARD["static"], noisy)
    )
    assert quiet is not None
    assert loud is not None
    assert loud.kept <= quiet.kept * 1.1
