"""What is remembered between requests: complete keys, order, the same clip again and at once, caches that are small."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import numpy as np
import pytest

from tests.field.talk import CHAT, NO_EVS, Talk, body_of, file_of, raw
from tests.oracle import Clip, lossless_file, noise_clip, noise_picture
from tests.processes import repeat_until

CLIP = noise_clip(101, num_frames=12, size=(64, 96), fps=4.0)


class Told:
    """An answer as it is compared: tokens, log-probabilities (a computed prompt that is found again was computed in
    other chunks, which may move their last digits), and the bill but for what of it was found."""

    def __init__(self, reply: dict[str, Any]) -> None:
        choice = reply["choices"][0]
        self.tokens = choice["token_ids"]
        tops = [top for entry in choice["logprobs"]["content"] for top in entry["top_logprobs"]]
        self.logprobs = np.array([top["logprob"] for top in tops])
        self.bill = {**reply["usage"], "prompt_tokens_details": without_cached(reply["usage"])}

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Told)
        return (self.tokens, self.bill) == (other.tokens, other.bill) and self.reads_like(other)

    def reads_like(self, other: Told) -> bool:
        return self.tokens == other.tokens and np.allclose(self.logprobs, other.logprobs, atol=1e-3)


def without_cached(usage: dict[str, Any]) -> dict[str, Any]:
    return {name: count for name, count in usage["prompt_tokens_details"].items() if name != "cached_tokens"}


def told(talk: Talk, *parts: Any, **fields: Any) -> Told:
    return Told(talk.ask(*parts, logprobs=True, top_logprobs=5, **fields))


def num_different(answers: list[Told]) -> int:
    return sum(not any(a.reads_like(b) for b in answers[:i]) for i, a in enumerate(answers))


def test_every_option_is_in_the_key(talk: Talk) -> None:
    """C-KEY-1, law 6: other options, another answer; the same options again, the same."""
    options: list[dict[str, Any]] = [
        {},
        {"video": {"fps": 1}},
        {"video": {"fps": 4}},
        {"video": {"fps": 1, "start_s": 1.0}},
        {"video": {"fps": 1, "end_s": 2.0}},
        {"video": {"max_frames": 2}},
        {"video": {"max_tokens": 4}},
        {"mm_processor_kwargs": {"max_pixels": 3 * 1024}},
        {"mm_processor_kwargs": {"min_pixels": 12 * 1024}},
        {"evs": {"method": "uniform", "rate": 0.5}},
        {"evs": {"method": "random", "rate": 0.5, "seed": 1}},
        {"evs": {"method": "random", "rate": 0.5, "seed": 2}},
    ]
    first, second = ([told(talk, CLIP, "?", **option) for option in options] for _ in range(2))
    assert first == second
    assert num_different(first) == len(options)


def test_other_clips_of_the_same_shape_are_not_mixed_up(talk: Talk) -> None:
    """C-PFX-1: the prompt's ids are equal, the pictures are not: A, B, C, A."""
    clips = [noise_clip(seed, num_frames=4, size=(64, 64)) for seed in (102, 103, 104, 102)]
    ids = [talk.render(clip, "what?")["prompt_token_ids"] for clip in clips]
    assert ids[0] == ids[1] == ids[2]
    answers = [told(talk, clip, "what?") for clip in clips]
    assert answers[0] == answers[3]
    assert num_different(answers) == 3
    alone = [answer.tokens for answer in answers]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda clip: talk.tokens(clip, "what?"), clips * 3)) == alone * 3


def test_a_reversed_clip_is_another(talk: Talk) -> None:
    """C-HASH-3: the order of frames is content."""
    forward = noise_clip(105, num_frames=6, size=(64, 64))
    backward = Clip(frames=np.ascontiguousarray(forward.frames[::-1]), fps=forward.fps)
    assert not told(talk, forward, "?").reads_like(told(talk, backward, "?"))


def test_bytes_after_the_clip_are_not_options(talk: Talk) -> None:
    """C-HASH-4: a file that ends in what looks like parameters is a file, and shares nothing with its parameters."""
    data = lossless_file(CLIP)
    plain = told(talk, raw(data), "?", video={"fps": 1})
    for tail in (b'{"fps": 1}', b"fps=1", bytes(64)):
        told(talk, raw(data + tail), "?")
    assert told(talk, raw(data), "?", video={"fps": 1}) == plain


def test_sixteen_at_once_are_one(talk: Talk) -> None:
    """C-SAME-2, C-PFX-3: equal answers, one decode, one encoding, and nothing stays behind."""
    clip = raw(file_of(noise_clip(106, num_frames=8, size=(64, 96))))
    before = talk.gauges()
    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda _: told(talk, clip, "?"), range(16)))
    talk.wait_for_rest()
    after = talk.gauges()
    replies.append(told(talk, clip, "?"))
    assert all(reply == replies[0] for reply in replies)
    for cache in ("encoder", "media"):
        name = f"evs:{cache}_cache_misses_total"
        assert after[name] == before[name] + 1


def test_where_text_ends_does_not_move_the_clip(talk: Talk) -> None:
    """C-PFX-6: the same two clips behind texts of other length are still the first and the second."""
    first, second = (noise_clip(seed, num_frames=4, size=(64, 64)) for seed in (107, 108))
    for text in ("x", "a longer text between them"):
        ours = told(talk, first, text, second, "?")
        assert not ours.reads_like(told(talk, second, text, first, "?"))
        assert ours == told(talk, first, text, second, "?")


# --------------------------------------------------------------------------------------------------------- small caches

SIX = [noise_clip(110 + number, num_frames=8, size=(64, 96)) for number in range(6)]
ROW_BYTES = 3 * 64 * 4  # a cell's encoding: the model's width, and two deeper planes


def test_items_of_one_request_may_outgrow_the_cache(talk: Talk, tight: Talk) -> None:
    """C-ENC-2: six clips, of which two fit, twice: their features come and go as the prompt is read."""
    parts = [part for clip in SIX for part in (clip, "next ")]
    sizes = [talk.render(clip)["usage"]["prompt_tokens_details"]["video_tokens"] for clip in SIX]
    assert 2 * sizes[0] * ROW_BYTES <= 48 << 10 < sum(sizes) * ROW_BYTES
    whole = talk.tokens(*parts, max_tokens=6)
    for _ in range(2):
        assert tight.tokens(*parts, max_tokens=6) == whole
    tight.wait_for_rest()


def test_many_clips_take_turns_in_a_small_cache(talk: Talk, tight: Talk) -> None:
    """C-ENC-4, B-PREEMPT-1: waiting requests do not starve each other of room."""
    clips = [noise_clip(120 + number, num_frames=8, size=(64, 96)) for number in range(8)]
    whole = [talk.tokens(clip, "?", max_tokens=12) for clip in clips]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda clip: tight.tokens(clip, "?", max_tokens=12), clips)) == whole
    tight.wait_for_rest()


@pytest.mark.parametrize("evs", [NO_EVS, {"method": "evs", "rate": 0.9}], ids=lambda e: e["method"])
def test_a_clip_that_can_never_fit_is_refused_at_once(tight: Talk, evs: dict[str, Any]) -> None:
    """C-ENC-5: over the encoder's budget is refused with both numbers; just under it is answered."""
    control = tight.tokens("control")
    over, under = (noise_clip(130, num_frames=count, size=(128, 128)) for count in (10, 8))
    error = tight.refusal(over, evs=evs, video={"fps": 2})
    assert error["status"] == 413
    assert str(48 << 10) in error["message"]
    assert len(tight.tokens(under, evs=evs, video={"fps": 2})) == 4
    assert tight.tokens("control") == control


def test_one_large_and_many_small(tight: Talk) -> None:
    """A request that is refused takes nothing from those beside it."""
    large = noise_clip(131, num_frames=32, size=(128, 128))
    small = noise_picture(132, size=(64, 64))
    alone = tight.tokens(small, "?")
    bodies = [body_of(large if number % 3 == 0 else small, "?") for number in range(12)]
    with ThreadPoolExecutor(12) as pool:
        replies = list(pool.map(tight.send, bodies))
    assert [reply.status_code for reply in replies[::3]] == [413] * 4
    rest = [reply for number, reply in enumerate(replies) if number % 3]
    assert [reply.json()["choices"][0]["token_ids"] for reply in rest] == [alone] * 8
    tight.wait_for_rest()


def test_a_second_question_is_billed_what_was_found(talk: Talk) -> None:
    """`cached_tokens`: no more than the template of a new clip, and of the same clip all but the last page or so."""
    clip = raw(file_of(noise_clip(140, num_frames=8, size=(64, 96))))
    before = talk.gauges()
    bills = [talk.ask(clip, text)["usage"] for text in ("what is it?", "what is it?", "how many?")]
    cached = [bill["prompt_tokens_details"]["cached_tokens"] for bill in bills]
    assert cached[0] <= 16 < bills[2]["prompt_tokens"] - 32 <= cached[2] <= cached[1] < bills[1]["prompt_tokens"]
    after = talk.gauges()
    name = "vllm:prefix_cache_hits_total"
    assert after[name] - before[name] == sum(cached)
    name = "vllm:prefix_cache_queries_total"
    assert after[name] - before[name] == sum(bill["prompt_tokens"] for bill in bills)
    assert after["evs:kv_pages_cached"] > 0


# ------------------------------------------------------------------------------------------------------- computed pages


def test_beginnings_are_shared_in_hardly_any_memory(talk: Talk, tight: Talk) -> None:
    """C-PFX-5: prompts that begin alike, at once, where pages are found, taken and given away all the time."""
    clips = [noise_clip(150 + number, num_frames=4, size=(64, 64)) for number in range(2)]
    questions = [[clips[n % 2], f"question {n // 4}", " and so on" * (n % 3)] for n in range(16)]
    alone = [talk.tokens(*parts, max_tokens=8) for parts in questions]
    before = tight.counted("vllm:prefix_cache_hits_total")

    def ask_all() -> None:
        with ThreadPoolExecutor(16) as pool:
            for _ in range(3):
                assert list(pool.map(lambda parts: tight.tokens(*parts, max_tokens=8), questions)) == alone

    repeat_until(ask_all, lambda: tight.counted("vllm:prefix_cache_hits_total") > before, what="a page that is found")
    tight.wait_for_rest()


async def test_a_prompt_that_was_broken_off_leaves_only_what_was_computed(talk: Talk, tight: Talk) -> None:
    """C-PFX-4: callers who hang up at any time of a long prefill, and the same question again at once."""
    for number, delay_s in enumerate((0.0, 0.02, 0.05, 0.1, 0.2)):
        clip = raw(file_of(noise_clip(155 + number, num_frames=12, size=(96, 96))))
        body = body_of(clip, "?", max_tokens=60)
        async with httpx2.AsyncClient(base_url=tight.server.url, timeout=60) as client:
            leaving = asyncio.create_task(client.post(CHAT, json=body))
            await asyncio.sleep(delay_s)
            leaving.cancel()
        assert told(tight, clip, "?").reads_like(told(talk, clip, "?"))
    tight.wait_for_rest()
