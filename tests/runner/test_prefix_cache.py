"""Law 4 on prefix-cache hits: a request that finds its beginning computed answers as if it had computed it itself,
wherever the hit ends. Law 7: and pages balance, whoever shares them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runner.pages import PagePool
from runner.pooling import Pooled
from runner.prefix_cache import PrefixCache
from runner.requests import EvsOptions
from runner.sequence import Sequence
from tests.checkpoints import BUILDERS
from tests.harness import Answer, LocalEngine, local_engine, rebuilt
from tests.oracle import Part, as_message, noise_clip, noise_picture
from tests.runner.test_history import assert_same
from tests.runner.test_page_keys import ITEMS, keys_of, make_prompt

CLIP, OTHER_CLIP = (noise_clip(seed, num_frames=5, size=(70, 100)) for seed in (1, 2))
PICTURE, OTHER_PICTURE = (noise_picture(seed, size=(64, 80)) for seed in (2, 3))
FIRST: list[Part] = ["look at this", CLIP, "and this", PICTURE, "why?"]
# The second question, and how far it is the first one: its text, its picture, its clip, the words before it.
SECOND: dict[str, list[Part]] = {
    "same": FIRST,
    "text": ["look at this", CLIP, "and this", PICTURE, "what else is in there?"],
    "picture": ["look at this", CLIP, "and this", OTHER_PICTURE, "why?"],
    "after the clip": ["look at this", CLIP, "x"],
    "clip": ["look at this", OTHER_CLIP, "and this", PICTURE, "why?"],
    "start": ["never mind", CLIP, "and this", PICTURE, "why?"],
}
MAX_TOKENS = 6
GATE = EvsOptions(method="gate")


@pytest.fixture(scope="module", params=sorted(BUILDERS))
def local(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]) -> Iterator[tuple[LocalEngine, Path]]:
    folder = checkpoint(request.param)
    with local_engine(folder, prefix_cache_bytes=0) as engine:
        yield engine, folder


def ask(engine: LocalEngine, turn: list[Part], **options: Any) -> Answer:
    return engine.answer([as_message(turn)], sampling=engine.everything(MAX_TOKENS), **options)


def caches(engine: LocalEngine) -> bool:
    return not engine.engine.scheduler.prefix.skipped["window"]


@pytest.mark.parametrize("evs", [EvsOptions(method="none"), EvsOptions(method="random", rate=0.5)], ids=["all", "half"])
def test_hits_that_end_anywhere(local: tuple[LocalEngine, Path], evs: EvsOptions) -> None:
    """Page by page of one row a hit ends where the prompts part; with pages of 7 before that, inside clips, too."""
    plain, folder = local
    alone = {name: ask(plain, turn, evs=evs) for name, turn in SECOND.items()}
    for page_size in (1, 7):
        engine = rebuilt(plain, folder, page_size=page_size)
        assert ask(engine, FIRST, evs=evs).cached_tokens == 0
        for name, turn in SECOND.items():
            engine.assembled.store.drop_unpinned()  # where the hit ends inside a clip, it must be encoded again
            found = ask(engine, turn, evs=evs)
            assert_same(found, alone[name])
            shared = num_common(plain, FIRST, turn, evs)
            assert found.cached_tokens <= shared
            assert found.cached_tokens == 0 or not found.cached_tokens % page_size
            if caches(engine) and page_size == 1 and not plain.lay_out([as_message(turn)], evs).prompt.ranges:
                assert found.cached_tokens == min(shared, found.usage.prompt_tokens - 1)


def num_common(plain: LocalEngine, first: list[Part], second: list[Part], evs: EvsOptions) -> int:
    """Rows for which two prompts are the same, found row by row."""
    a, b = (plain.lay_out([as_message(turn)], evs) for turn in (first, second))
    for row in range(min(len(a.prompt), len(b.prompt))):
        same = a.prompt.token_ids[row] == b.prompt.token_ids[row] and a.prompt.rank[row] == b.prompt.rank[row]
        same = same and (a.prompt.positions[:, row] == b.prompt.positions[:, row]).all()
        if same and a.prompt.rank[row] >= 0:
            owners = [laid.items[int(laid.prompt.item[row])].encoding_key for laid in (a, b)]
            same = owners[0] == owners[1]
        if not same:
            return row
    return min(len(a.prompt), len(b.prompt))


def test_a_second_question_encodes_nothing(local: tuple[LocalEngine, Path]) -> None:
    plain, folder = local
    engine = rebuilt(plain, folder, page_size=1)
    ask(engine, FIRST, evs=GATE)
    engine.assembled.store.drop_unpinned()
    encoded = sum(engine.engine.runner.encoder.patches.values())
    second = ask(engine, SECOND["text"], evs=GATE)
    if caches(engine) and not plain.lay_out([as_message(FIRST)], GATE).prompt.ranges:
        assert sum(engine.engine.runner.encoder.patches.values()) == encoded > 0
        assert second.cached_tokens > second.usage.prompt_tokens // 2


def test_pages_that_give_way_are_computed_again(local: tuple[LocalEngine, Path]) -> None:
    """Room for hardly more than one prompt: other prompts push it out, page by page from its end."""
    plain, folder = local
    alone = ask(plain, FIRST)
    pages = -(-(alone.usage.prompt_tokens + MAX_TOKENS) // 16) + 1
    engine = rebuilt(plain, folder, kv_memory_bytes=pages * plain.engine.runner.backend.layout.page_bytes)
    cached = []
    for filler in ("a", "b " * 12, "c " * 24, ""):
        assert_same(ask(engine, FIRST), alone)
        if filler:
            cached.append(ask(engine, [filler]).cached_tokens)
    if caches(engine):
        assert engine.assembled.pages.num_evicted > 0
    assert engine.assembled.pages.num_free == engine.assembled.pages.num_pages


def test_a_step_that_fails_leaves_nothing_to_find(local: tuple[LocalEngine, Path], monkeypatch: Any) -> None:
    """Rows whose computing failed half way are not found by the next request: it computes them."""
    plain, folder = local
    alone = ask(plain, FIRST)
    engine = rebuilt(plain, folder, page_size=1)
    family = engine.engine.runner._family
    whole = type(family).logits

    def break_once(*_: Any) -> torch.Tensor:
        raise RuntimeError("a step that fails")

    monkeypatch.setattr(type(family), "logits", break_once)
    name = engine.submit([as_message(FIRST)], sampling=engine.everything(MAX_TOKENS))
    with pytest.raises(RuntimeError, match="a step that fails"):
        engine.run()
    engine.receive(engine.engine.fail_all("failed"))
    assert engine.answers[name, 0].finish_reason == "error"
    monkeypatch.setattr(type(family), "logits", whole)
    again = ask(engine, FIRST)
    assert_same(again, alone)
    assert again.cached_tokens < again.usage.prompt_tokens - 1


def test_a_prompt_that_was_broken_off_is_found_as_far_as_it_was_read(local: tuple[LocalEngine, Path]) -> None:
    """Aborted between two chunks of its prefill: what was computed is found, what was planned is not."""
    plain, folder = local
    chat = [as_message(FIRST)]
    alone = ask(plain, FIRST)
    step = max(17, plain.smallest_step(chat))
    engine = rebuilt(plain, folder, page_size=1, max_num_batched_tokens=step, max_num_seqs=4)
    name = engine.submit(chat, sampling=engine.everything(MAX_TOKENS))
    for _ in range(2):
        engine.step()
    engine.receive(engine.engine.abort(name, None))
    again = ask(engine, FIRST)
    assert_same(again, alone)
    if caches(engine) and not plain.lay_out(chat).prompt.ranges:
        assert again.cached_tokens == 2 * step < again.usage.prompt_tokens - 1


@pytest.mark.parametrize("gone", [False, True], ids=["found", "gone"])
def test_what_a_preempted_sequence_finds_is_its_own(local: tuple[LocalEngine, Path], gone: bool) -> None:
    """It is billed nothing of it, and what it had to compute again is found by the next, too."""
    plain, folder = local
    alone = ask(plain, FIRST)
    engine = rebuilt(plain, folder, page_size=1)
    name = engine.submit([as_message(FIRST)], sampling=engine.everything(MAX_TOKENS))
    sequence = engine.engine._sequences[name, 0]
    while len(sequence.output) < 2:
        engine.step()
    engine.engine.scheduler._preempt(sequence)
    if gone:
        engine.assembled.pages.forget()
    engine.run()
    assert_same(engine.answers[name, 0], alone)
    assert engine.answers[name, 0].cached_tokens == 0
    if caches(engine) and not plain.lay_out([as_message(FIRST)]).prompt.ranges:
        assert ask(engine, FIRST).cached_tokens == alone.usage.prompt_tokens - 1


def test_sharing_under_aborts_and_preemption(local: tuple[LocalEngine, Path]) -> None:
    """Many that begin alike, in tight memory, some of them aborted: what ends is as if alone, and all pages return."""
    plain, folder = local
    long = plain.answer([as_message(FIRST)], sampling=plain.everything(30))
    page_bytes = plain.engine.runner.backend.layout.page_bytes
    pages = -(-(long.usage.prompt_tokens + 1) // 16)
    engine = rebuilt(plain, folder, kv_memory_bytes=(pages + 5) * page_bytes, max_num_seqs=6)
    ask(engine, FIRST)
    rng = np.random.default_rng(0)
    live = []
    for number in range(8):
        live.append(engine.submit([as_message(FIRST)], sampling=engine.everything(30)))
        for _ in range(int(rng.integers(1, 5))):
            engine.step()
            engine.engine.scheduler.check_integrity()
        if number % 3 == 2:
            engine.receive(engine.engine.abort(live.pop(int(rng.integers(len(live)))), None))
    engine.run()
    for name in live:
        assert_same(engine.answers[name, 0], long)
    if caches(engine) and not plain.lay_out([as_message(FIRST)]).prompt.ranges:
        assert engine.engine.scheduler.events["preemptions"] > 0
        assert max(engine.answers[name, 0].cached_tokens for name in live) > 0
    pages_left = engine.assembled.pages
    assert pages_left.num_free == pages_left.num_pages
    pages_left.forget()
    assert pages_left.num_cached == 0


def test_windowed_families_say_why_not(checkpoint: Callable[[str], Path]) -> None:
    """Skipped with a reason, or looked up: never neither."""
    for name in sorted(BUILDERS):
        with local_engine(checkpoint(name)) as engine:
            ask(engine, ["only text"])
            prefix = engine.engine.scheduler.prefix
            windowed = engine.engine.runner.backend.layout.window is not None
            assert (prefix.skipped["window"], bool(prefix.events["queries"])) == (int(windowed), not windowed)


def test_without_a_cache_nothing_is_found(local: tuple[LocalEngine, Path]) -> None:
    plain, _ = local
    for _ in range(2):
        assert ask(plain, FIRST).cached_tokens == 0
    assert plain.assembled.pages.num_cached == 0
    assert plain.engine.scheduler.prefix.skipped["off"] > 1


def test_keys_are_made_before_the_scheduler_has_the_sequence() -> None:
    """Two answers to one prompt and one to another: each has its own list of its prompt's keys."""
    prompts = [make_prompt(12)] * 2 + [make_prompt(9)]
    sequences = [
        Sequence(request_id="r", index=index, arrival=0, prompt=prompt, items=ITEMS, goal=Pooled())
        for index, prompt in enumerate(prompts)
    ]
    PrefixCache(PagePool(4, max_cached=0), 4, bypass="off", pooling="last").prepare(sequences)
    assert not any(sequence.page_keys for sequence in sequences)
    PrefixCache(PagePool(4), 4, bypass=None, pooling="last").prepare(sequences)
    sequences[0].page_keys.append(b"its next page")
    assert [sequence.page_keys for sequence in sequences[1:]] == [keys_of(prompt) for prompt in prompts[1:]]
