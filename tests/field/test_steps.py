"""How answers are computed shows in none of them: steps of fixed shape, guesses, lengths at the edge, a full house."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from tests.clips import make_clip, repeat_clip
from tests.field.conftest import FLAGS
from tests.field.talk import NO_EVS, AnyPart, Talk, body_of, file_of, raw, user
from tests.field.test_caching import told
from tests.oracle import Clip, noise_clip, noise_picture
from tests.processes import repeat_until, wait_until
from tests.server import running_server

CLIPS = [raw(file_of(noise_clip(160 + n, num_frames=3 + n, size=(64, 64 + 32 * (n % 2))))) for n in range(4)]
PROMPTS: list[list[AnyPart]] = [
    ["say it again and again"], ["one"], [CLIPS[0], "?"], ["a", CLIPS[1], "b", noise_picture(166, size=(64, 80)), "c"],
    [CLIPS[2], CLIPS[3], "which?"], [noise_picture(167, size=(96, 64)), "what?"], ["x " * 40], [CLIPS[3]],
]  # fmt: skip
LETTERS = {"65": 100, "66": 100}  # an answer of two letters: there is nearly always a guess, and often a right one
CONTEXT = 4096
ACCEPTED, PREEMPTED = "vllm:spec_decode_num_accepted_tokens_total", "vllm:num_preemptions_total"
WAITING, PLACES = 8, 16


@pytest.fixture(scope="module")
def fixed(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talk]:
    """Steps of fixed shape and nobody who guesses, where `talk` guesses, eagerly; and a short queue."""
    folder = checkpoint("qwen3_vl")
    flags = (*FLAGS, "--graphs", "always", "--speculative-method", "none", "--max-waiting", str(WAITING),
             "--max-num-seqs", str(PLACES))  # fmt: skip
    with running_server(folder, *flags, media_dir=tmp_path_factory.mktemp("media")) as server:
        yield Talk(server, folder)


def test_fixed_shapes_and_guesses_change_no_answer(talk: Talk, fixed: Talk) -> None:
    """B-GRAPH-3, B-SPEC-1, M-TEXT-1: words, pictures and clips, greedy, with one server guessing and the other not."""
    graphs = 'evs:steps_total{mode="graph",reason="decode"}'
    before, guessed = fixed.gauges().get(graphs, 0.0), talk.counted(ACCEPTED)

    def compare() -> None:
        for bias in ({}, {"65": 100}):
            for parts in PROMPTS:
                fields = {"max_tokens": 16, "logit_bias": bias}
                assert told(fixed, *parts, **fields).reads_like(told(talk, *parts, **fields))

    repeat_until(compare, lambda: talk.counted(ACCEPTED) > guessed, what="a guess that is right")
    assert fixed.gauges()[graphs] >= before + 15 * 2 * len(PROMPTS)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 9])
def test_batches_between_two_sizes(talk: Talk, fixed: Talk, count: int) -> None:
    """B-GRAPH-4: what fills a batch up writes to nobody's pages: so many answers at once, and one long one that goes
    on through all of them."""
    fields = {"n": count, "temperature": 1.2, "seed": 9, "max_tokens": 24}
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(fixed.tokens, CLIPS[1], "?", max_tokens=60)
        ours, theirs = (answers_of(t.ask(CLIPS[0], "?", **fields)) for t in (fixed, talk))
        assert ours == theirs
        assert beside.result() == talk.tokens(CLIPS[1], "?", max_tokens=60)


def test_clips_of_as_many_patches_in_other_slots(talk: Talk, fixed: Talk) -> None:
    """B-GRAPH-2: four slots of eight cells, and eight of four, in turn: the encoder's shapes are told apart."""
    wide, long = ([(8, (64, 128)), (16, (64, 64))][kind] for kind in range(2))
    clips = [noise_clip(170 + n, num_frames=kind[0], size=kind[1]) for n, kind in enumerate((wide, long) * 2)]
    options = {"video": {"fps": 2.0, "max_frames": 16}, "evs": NO_EVS}
    sizes = [fixed.render(clip, **options)["usage"]["prompt_tokens_details"]["video_tokens"] for clip in clips]
    assert set(sizes) == {32}
    for clip in clips:
        assert told(fixed, clip, "?", **options) == told(talk, clip, "?", **options)
    assert fixed.gauges()['evs:encoder_batches_total{mode="graph",reason="packed"}'] >= len(clips)


# ----------------------------------------------------------------------------------------------------------- the edges


@pytest.mark.parametrize("parts", [[], [CLIPS[2]]], ids=["text", "clip"])
def test_an_answer_ends_at_the_contexts_end(talk: Talk, parts: list[AnyPart]) -> None:
    """B-SPEC-3, B-LEN-1: prompts that leave room for 1, 2 or 3 tokens are answered with so many, guesses or not; one
    token more is refused with both numbers."""
    least = talk.render(*parts, "x")["usage"]["prompt_tokens"]
    for room in (3, 2, 1):
        words = "x" * (CONTEXT - room - least + 1)
        for bias in ({}, {"65": 100}):
            usage = talk.ask(*parts, words, max_tokens=room, logit_bias=bias)["usage"]
            assert (usage["prompt_tokens"], usage["completion_tokens"]) == (CONTEXT - room, room)
        error = talk.refusal(*parts, words, max_tokens=room + 1)
        assert error["code"] == "context_length_exceeded"
        assert str(CONTEXT - room) in error["message"] and str(room + 1) in error["message"]


def test_what_does_not_fit_is_not_encoded(talk: Talk) -> None:
    """B-LEN-1: a new clip in a prompt that is a token too long is refused before anybody looks at it."""
    clip = noise_clip(180, num_frames=4, size=(64, 64))
    misses = "evs:encoder_cache_misses_total"
    before = talk.gauges()[misses]
    assert talk.refusal(clip, "x" * CONTEXT)["code"] == "context_length_exceeded"
    assert talk.gauges()[misses] == before
    talk.ask(clip, "x")
    assert talk.gauges()[misses] == before + 1


def test_a_full_queue_turns_away(fixed: Talk) -> None:
    """B-Q-1: 48 at once in a full house where eight may wait: some are told to come again, all others are answered as
    ever."""
    alone = fixed.tokens(CLIPS[0], "?", max_tokens=12)
    bodies = [body_of(raw(CLIPS[0].data + bytes(n)), "?", max_tokens=12) for n in range(1, 49)]  # each is decoded
    with ThreadPoolExecutor(48) as pool:
        with fixed.full_house(PLACES):
            asked = [pool.submit(fixed.send, body) for body in bodies]
            wait_until(lambda: any(one.done() for one in asked), what="the first that is turned away")
        replies = [one.result() for one in asked]
    turned = [reply for reply in replies if reply.status_code == 429]
    assert turned and all(reply.headers["retry-after"] for reply in turned)
    answered = [reply for reply in replies if reply.status_code == 200]
    assert len(answered) + len(turned) == 48
    assert len(answered) >= WAITING
    assert all(reply.json()["choices"][0]["token_ids"] == alone for reply in answered)
    fixed.wait_for_rest()


# --------------------------------------------------------------------------------------------------------- a full house


def test_guesses_in_hardly_any_memory(talk: Talk, tight: Talk) -> None:
    """C-ENC-3, B-PREEMPT-1: thirty answers about clips that outgrow the pages and are preempted between guesses. The
    six of a request come together, and are more than the pages hold."""
    before = [tight.counted(name) for name in (PREEMPTED, ACCEPTED)]
    fields = {"max_tokens": 60, "logit_bias": LETTERS, "temperature": 1, "seed": 4, "n": 6}
    alone = [answers_of(talk.ask(clip, "?", **fields)) for clip in CLIPS]

    def ask_together() -> None:
        with ThreadPoolExecutor(5) as pool:
            together = list(pool.map(lambda n: answers_of(tight.ask(CLIPS[n % 4], "?", **fields)), range(5)))
        assert together == [alone[number % 4] for number in range(5)]

    def happened() -> bool:
        return all(tight.counted(name) > old for name, old in zip((PREEMPTED, ACCEPTED), before, strict=True))

    repeat_until(ask_together, happened, what="a preemption and a guess that is right")
    tight.wait_for_rest()


def answers_of(reply: dict[str, Any]) -> list[list[int]]:
    return [choice["token_ids"] for choice in reply["choices"]]


def test_plain_clips_are_not_swapped(talk: Talk, tight: Talk) -> None:
    """B-CROSS-1, C-ENC-6: twelve clips of one shape, each of one colour, asked about again and again at once where
    hardly two can be held: everyone hears of the own clip."""
    shades = [(40 * (n % 6) + 20, 250 - 20 * n, 21 * n) for n in range(12)]
    clips = [raw(file_of(Clip(frames=np.full((4, 64, 64, 3), shade, np.uint8), fps=2.0))) for shade in shades]
    alone = [told(talk, clip, "?", max_tokens=2) for clip in clips]
    assert all(not a.reads_like(b) for n, a in enumerate(alone) for b in alone[:n])
    order = np.random.default_rng(0).integers(12, size=72).tolist()
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda n: told(tight, clips[n], "?", max_tokens=2), order))
    assert all(answer.reads_like(alone[number]) for number, answer in zip(order, answers, strict=True))


def test_decoding_keeps_nobody_from_asking_how_it_goes(talk: Talk) -> None:
    """B-LOOP-1: while large clips are fetched, decoded and encoded, `/health` answers at once. Were a clip decoded
    where it is answered, it would wait for a quarter of all that time, again and again. The clips are long, and wanted
    from end to end, so that the pauses of a busy machine are short beside it."""
    film = repeat_clip(make_clip(frames=150, size=(720, 1280), options={"bf": "8", "g": "250"}), times=16)
    bodies: list[dict[str, Any]] = [
        {"messages": [user(raw(film + bytes(n)), "?")], "max_tokens": 1, "video": {"max_frames": 32}} for n in range(4)
    ]
    waits, over = list[float](), threading.Event()

    def ask_how_it_goes() -> None:
        while not over.is_set():
            started = time.perf_counter()
            assert httpx2.get(f"{talk.server.url}/health", timeout=30).status_code == 200
            waits.append(time.perf_counter() - started)
            time.sleep(0.01)

    with ThreadPoolExecutor(5) as pool:
        began = time.perf_counter()
        watch = pool.submit(ask_how_it_goes)
        replies = list(pool.map(talk.send, bodies))
        took = time.perf_counter() - began
        over.set()
        watch.result()
    assert [reply.status_code for reply in replies] == [200] * 4
    assert sum(wait for wait in waits if wait > took / 8) < took / 2, (took, sorted(waits)[-5:])
