"""Law 4: in fp32 a request's greedy tokens and logits do not depend on what else runs, on where its prompt is cut into
chunks, on the encoder's budget, or on having been preempted. Law 7: and pages balance after all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from runner.errors import RequestError
from runner.requests import ChatMessage, InlineBytes, MediaPart, SamplingParams, TextPart
from tests.checkpoints import BUILDERS
from tests.harness import Answer, LocalEngine, local_engine, rebuilt
from tests.oracle import Part, as_message, lossless_file, noise_clip, noise_picture, worst_error

TOLERANCE = 1e-4
TURN: list[Part] = ["a", noise_clip(1, num_frames=5, size=(70, 100)), "b", noise_picture(2, size=(64, 80)), "why?"]
MAX_TOKENS = 6
MOST_TOKENS = 24


@pytest.fixture(scope="module", params=sorted(BUILDERS))
def alone(
    request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]
) -> Iterator[tuple[LocalEngine, Path, Answer]]:
    """An engine, its checkpoint, and TURN answered by itself in one chunk."""
    folder = checkpoint(request.param)
    with local_engine(folder) as local:
        yield local, folder, local.answer([as_message(TURN)], sampling=local.everything(MAX_TOKENS))


def assert_same(ours: Answer, reference: Answer) -> None:
    """Equal tokens up to the first step whose two best are a near-tie; equal logits on the way."""
    for step, (a, b) in enumerate(zip(ours.token_ids, reference.token_ids, strict=False)):
        best, second = sorted(reference.tops[step].values(), reverse=True)[:2]
        if a != b:
            assert best - second < 1e-4, f"step {step}: {a} is not {b}"
            return
        rows = slice(step, step + 1)
        assert worst_error(ours.logprobs[rows], reference.logprobs[rows]) < TOLERANCE


def test_chunked_at_every_boundary(alone: tuple[LocalEngine, Path, Answer]) -> None:
    """The smallest chunks cut at every boundary there is; sizes up to 16 cut after several chunks, larger ones leave a
    long and a short one."""
    local, folder, reference = alone
    least, rows = local.smallest_step([as_message(TURN)]), reference.usage.prompt_tokens
    for size in sorted({least, *range(least, 17), *range(max(least, 17), rows, 4), rows - 1, rows} - {*range(least)}):
        engine = rebuilt(local, folder, max_num_seqs=1, max_num_batched_tokens=size)
        assert_same(engine.answer([as_message(TURN)], sampling=engine.everything(2)), reference)


@pytest.mark.parametrize("patches", [1, 50, 150])
def test_encoded_slot_by_slot(alone: tuple[LocalEngine, Path, Answer], patches: int) -> None:
    local, folder, reference = alone
    engine = rebuilt(local, folder, max_encoder_patches=patches)
    assert_same(engine.answer([as_message(TURN)], sampling=engine.everything(MAX_TOKENS)), reference)


def test_batched_with_others_arriving_at_any_time(alone: tuple[LocalEngine, Path, Answer]) -> None:
    local, folder, reference = alone
    tokens = max(40, local.smallest_step([as_message(TURN)]))
    engine = rebuilt(local, folder, max_num_batched_tokens=tokens, max_num_seqs=5, max_encoder_patches=64)
    others = [["only text"], [noise_clip(7, num_frames=4, size=(64, 64)), "x"], [noise_picture(9, size=(96, 64)), "y"]]
    ids = []
    for number in range(9):
        turn = TURN if number % 3 == 0 else others[number % len(others)]
        name = engine.submit([as_message(turn)], sampling=engine.everything(MAX_TOKENS))
        if turn is TURN:
            ids.append(name)
        engine.step()
    engine.run()
    for name in ids:
        assert_same(engine.answers[name, 0], reference)


def test_waiting_for_pages(alone: tuple[LocalEngine, Path, Answer]) -> None:
    """Pages for hardly more than one sequence: the others wait, in order."""
    local, folder, reference = alone
    page_bytes = local.engine.runner.backend.layout.page_bytes
    pages = -(-(reference.usage.prompt_tokens + MAX_TOKENS) // 16) + 1
    engine = rebuilt(local, folder, kv_memory_bytes=(2 * pages - 1) * page_bytes)
    turns = [TURN, ["short text"], TURN, TURN]
    ids = [engine.submit([as_message(turn)], sampling=engine.everything(MAX_TOKENS)) for turn in turns]
    engine.run()
    for name, turn in zip(ids, turns, strict=True):
        if turn is TURN:
            assert_same(engine.answers[name, 0], reference)


def test_preempted_and_computed_again(alone: tuple[LocalEngine, Path, Answer]) -> None:
    """Growing answers over clips outgrow the pages: the youngest gives its own back, is encoded and computed again, and
    ends as if alone."""
    local, folder, reference = alone
    long = local.answer([as_message(TURN)], sampling=local.everything(70))
    page_bytes = local.engine.runner.backend.layout.page_bytes
    pages = 2 * -(-(reference.usage.prompt_tokens + 1) // 16) + 4
    engine = rebuilt(local, folder, kv_memory_bytes=pages * page_bytes)
    ids = [engine.submit([as_message(TURN)], sampling=engine.everything(70)) for _ in range(2)]
    engine.run()
    assert engine.engine.scheduler.events["preemptions"] > 0
    for name in ids:
        assert_same(engine.answers[name, 0], long)


def bad_inputs() -> list[ChatMessage]:
    """A file that is no clip, a clip that breaks off, and a prompt that no memory here holds."""
    files = (b"no clip at all", lossless_file(noise_clip(3, num_frames=3, size=(64, 64)))[:300])
    clips = [MediaPart(kind="video", source=InlineBytes(data=data)) for data in files]
    return [ChatMessage(role="user", parts=(clip, TextPart(text="?"))) for clip in clips] + [
        as_message(["word " * 5000])
    ]


def test_all_of_it_at_once(alone: tuple[LocalEngine, Path, Answer]) -> None:
    """Laws 4, 7 and 8: random arrivals, lengths and aborts, inputs that fail, tight pages that preempt, small chunks,
    small encoder budgets; whatever finishes is as if alone, and nothing is held afterwards."""
    local, folder, short = alone
    reference = local.answer([as_message(TURN)], sampling=local.everything(MOST_TOKENS))
    assert_same(reference, short)
    bad, refused, preemptions = bad_inputs(), set(), 0
    page_bytes = local.engine.runner.backend.layout.page_bytes
    for seed in range(3):
        rng = np.random.default_rng(seed)
        least = local.smallest_step([as_message(TURN)])
        engine = rebuilt(
            local, folder, max_num_seqs=int(rng.integers(2, 6)),
            max_num_batched_tokens=max(least, int(rng.integers(6, 60))),
            max_encoder_patches=int(rng.integers(1, 200)),
            kv_memory_bytes=(reference.usage.prompt_tokens // 16 + int(rng.integers(3, 12))) * page_bytes,
        )  # fmt: skip
        live: set[str] = set()
        for number in range(14):
            if number % 5 == 3:
                with pytest.raises(RequestError) as caught:
                    engine.submit([bad[number // 5 % len(bad)]])
                refused.add(caught.value.kind)
            turn = TURN if rng.random() < 0.6 else ["some other text"]
            tokens = int(rng.choice((1, MAX_TOKENS, MOST_TOKENS)))
            name = engine.submit([as_message(turn)], sampling=engine.everything(tokens))
            if turn is TURN:
                live.add(name)
            for _ in range(int(rng.integers(0, 4))):
                if engine.engine.has_work:
                    engine.step()
            if rng.random() < 0.3 and live:
                victim = sorted(live)[int(rng.integers(len(live)))]
                live.discard(victim)
                engine.receive(engine.engine.abort(victim, None))
                engine.engine.scheduler.check_integrity()
        engine.run()
        preemptions += engine.engine.scheduler.events["preemptions"]
        for name in live:
            assert engine.answers[name, 0].finish_reason == "length"
            assert_same(engine.answers[name, 0], reference)
    assert preemptions > 0
    assert refused == {"unsupported_media", "undecodable", "invalid"}


def test_a_seed_gives_the_same_text_alone_and_among_sixteen(alone: tuple[LocalEngine, Path, Answer]) -> None:
    """Draws are keyed by (seed, position): neighbours with other seeds, controls and lengths change nothing."""
    local, folder, _ = alone

    def sampling(seed: int) -> SamplingParams:
        controls = ({}, {"top_k": 20}, {"top_p": 0.8, "min_p": 0.01}, {"repetition_penalty": 1.3})[seed % 4]
        return SamplingParams(temperature=1.2, max_tokens=8, ignore_eos=True, seed=seed, **controls)

    turns = [TURN if seed % 5 == 0 else [f"tell me about {seed}"] for seed in range(16)]
    solo = [local.answer([as_message(turn)], sampling=sampling(seed)).token_ids for seed, turn in enumerate(turns)]
    tokens = max(64, local.smallest_step([as_message(TURN)]))
    engine = rebuilt(local, folder, max_num_seqs=16, max_num_batched_tokens=tokens)
    names = [engine.submit([as_message(turn)], sampling=sampling(seed)) for seed, turn in enumerate(turns)]
    engine.run()
    assert [engine.answers[name, 0].token_ids for name in names] == solo
