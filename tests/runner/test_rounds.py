"""Law 4, over all of its dimensions at once, and laws 5 and 7 on the way: see tests/runner/rounds.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from runner import inputs, slots
from runner.pages import pages_for
from runner.ranges import longest_range
from tests.checkpoints import BUILDERS
from tests.harness import local_engine
from tests.runner.rounds import Player, Stage, guess, is_inside_item
from tests.runner.wishes import DRAWS, MOST_LOGPROBS, TURNS, Wish, compare
from vision.towers import padding

QUICK = ("qwen3_vl", "smolvlm")
PROPOSERS = ("none", "ngram", "draft", "replay")


@pytest.fixture(scope="module")
def stages(checkpoint: Callable[[str], Path]) -> Callable[[str], Stage]:
    made: dict[str, Stage] = {}

    def get(family: str) -> Stage:
        if family not in made:
            with local_engine(checkpoint(family)) as local:
                made[family] = Stage(local, checkpoint(family))
        return made[family]

    return get


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law 5: whatever only fills up is NaN, or large."""
    monkeypatch.setattr(inputs, "PADDING", torch.nan)
    monkeypatch.setattr(slots, "TAIL", 1e4)
    monkeypatch.setattr(padding, "PIXELS", torch.nan)


def draw_wishes(stage: Stage, rng: np.random.Generator, count: int) -> list[Wish]:
    """Requests of a few kinds, some of which are asked again and again, about a few turns in two ways to prune."""
    turns = rng.choice(list(TURNS), size=3, replace=False).tolist()
    ways = [stage.evs[place] for place in rng.choice(len(stage.evs), size=2, replace=False)]
    kinds = [
        Wish(turn=str(rng.choice(turns)), evs=ways[rng.integers(2)], draw=str(rng.choice(list(DRAWS))), seed=number)
        for number in range(count // 2)
    ]
    return [draw_end(stage, rng, kinds[rng.integers(len(kinds))]) for _ in range(count)]


def draw_end(stage: Stage, rng: np.random.Generator, kind: Wish) -> Wish:
    """How long it may be, what of it is told, and what else ends it: something that it is about to say."""
    max_tokens, top_logprobs = int(rng.choice((1, 8, 20, 40))), (None, 1, MOST_LOGPROBS)[rng.integers(3)]
    wish = replace(kind, max_tokens=max_tokens, top_logprobs=top_logprobs)
    alone = stage.alone(wish)
    match rng.integers(6):
        case 0 | 1:
            text = alone.tell(kind, stage.vocabulary).text + "never said"
            start = int(rng.integers(len(text)))
            return replace(wish, stops=(text[start : start + int(rng.integers(1, 4))], "said never"))
        case 2:
            return replace(wish, stop_token_ids=(int(rng.choice(alone.token_ids)),))
    return wish


def build(stage: Stage, rng: np.random.Generator, wishes: list[Wish], proposer: str) -> Player:
    """Just large enough for the largest of these requests, or a little larger."""
    laid = [stage.local.lay_out([stage.messages[wish.turn]], wish.evs) for wish in wishes]
    rows = max(len(one.prompt) + wish.max_tokens for one, wish in zip(laid, wishes, strict=True))
    rows += max((len(addition.prompt) for addition in stage.additions), default=0)
    ranges = [one.prompt.ranges for one in laid] + [addition.prompt.ranges for addition in stage.additions]
    page_size, seqs = int(rng.choice((4, 7, 16))), int(rng.integers(2, 7))
    pages = pages_for(rows + 1, page_size) + int(rng.integers(1, 8)) * 16 // page_size
    return stage.build(
        proposer=proposer,
        page_size=page_size,
        max_num_seqs=seqs,
        max_num_batched_tokens=max(seqs, *map(longest_range, ranges)) + int(rng.integers(0, 50)),
        max_encoder_patches=int(rng.integers(1, 200)),
        max_encoder_patches_decoding=int(rng.integers(1, 100)),
        kv_memory_bytes=pages * stage.page_bytes(page_size, proposer),
        encoder_cache_bytes=stage.largest_encoding * int(rng.choice((1, 2, 50))),
        prefix_cache_bytes=None if rng.random() < 0.8 else 0,
        graphs=("always", "never")[rng.integers(2)],
    )


def play(stage: Stage, seed: int) -> Counter[str]:
    """One round; returns what happened in it."""
    rng = np.random.default_rng(seed)
    wishes = draw_wishes(stage, rng, 12)
    proposer = PROPOSERS[seed % len(PROPOSERS)]
    engine = build(stage, rng, wishes, proposer)
    engine.engine.runner.backend.memory.fill_(1e4)
    known: dict[str, list[int]] = {}
    guess(engine, proposer, known)
    for wish in wishes:
        name, _ = engine.ask(wish, stage.messages[wish.turn], priority=int(rng.integers(2)))
        known[name] = stage.alone(wish).token_ids
        for _ in range(int(rng.integers(0, 12))):
            if engine.engine.has_work:
                engine.step()
        disturb(stage, engine, rng, known)
    engine.run()
    return check(stage, engine, proposer)


def disturb(stage: Stage, engine: Player, rng: np.random.Generator, known: dict[str, list[int]]) -> None:
    """End a live request, or give it more to read."""
    live = [key for key, sequence in engine.sequences.items() if sequence.phase != "finished"]
    chance = rng.random()
    if not live:
        return
    key = live[rng.integers(len(live))]
    told, drawn = engine.told[key], engine.sequences[key].num_drawn
    if chance < 0.15:
        engine.abort(key)
    elif chance < 0.4 and stage.additions and told.wish.more_after is None:
        told.wish = replace(told.wish, more_after=drawn)
        engine.append(key, stage.addition(told.wish))
        known[key[0]] = stage.alone(told.wish).token_ids[drawn:]


def check(stage: Stage, engine: Player, proposer: str) -> Counter[str]:
    """Each is told what it would be told alone, and nothing is held."""
    seen, pages, prefix = engine.seen, engine.assembled.pages, engine.engine.scheduler.prefix
    for key, told in engine.told.items():
        seen["compared"] += 1
        seen["near-ties"] += not compare(told, stage.alone(told.wish), engine.vocabulary)
        sequence, page_size = engine.sequences[key], engine.assembled.info.page_size
        cached, asked = sequence.num_cached_tokens or 0, engine.answers[key].usage.prompt_tokens
        assert cached < len(sequence.prompt) and cached % page_size == 0
        seen["hit"] += bool(cached)
        seen["hit that ends inside a clip"] += is_inside_item(sequence, cached)
        seen["hit of all there is"] += bool(cached) and cached == (asked - 1) // page_size * page_size
    assert pages.num_free == pages.num_pages
    assert sum(sequence.num_cached_tokens or 0 for sequence in engine.sequences.values()) == prefix.events["hits"]
    runner = engine.engine.runner
    seen["preemption"] += engine.engine.scheduler.events["preemptions"]
    seen[f"accepted, {proposer}"] += engine.engine.speculation.counters["accepted"]
    seen["steps by graph"] += runner.routes["graph", "decode"]
    seen["encoded by graph"] += runner.encoder.routes["graph", "packed"]
    for (mode, _), patches in runner.encoder.patches.items():
        seen[f"encoded, {mode}"] += bool(patches)
    return seen


def must_happen(stage: Stage) -> set[str]:
    """Of the things that may happen in rounds, those that this family knows."""
    wanted = {"preemption", "accepted, ngram", "accepted, draft", "accepted, replay", "steps by graph"}
    wanted |= {"aborted before", "aborted while answering", "stop string", "stop string in a run"}
    wanted |= {"encoded by graph"}
    wanted |= {f"encoded, {mode}" for mode in {evs.encoder or "full" for evs in stage.evs}}
    if stage.additions:
        wanted |= {"appended to a prompt", "appended later"}
    layout, prefix = stage.local.engine.runner.backend.layout, stage.family.shape.prefix
    if layout.window is None and prefix != "prompt":  # such a prompt is computed whole or not at all
        wanted |= {"hit"}
    if prefix == "none":
        wanted |= {"clip cut by a chunk", "hit that ends inside a clip", "hit of all there is"}
    return wanted


def play_all(stage: Stage, seeds: range) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        seen += play(stage, seed)
    assert not (missing := {name for name in must_happen(stage) if not seen[name]}), f"{missing} did not happen: {seen}"
    assert seen["near-ties"] <= 0.05 * seen["compared"] + 1
    return seen


@pytest.mark.parametrize("family", QUICK)
def test_nothing_that_happens_to_a_request_changes_its_answer(stages: Callable[[str], Stage], family: str) -> None:
    play_all(stages(family), range(8))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("family", sorted(BUILDERS))
def test_nor_in_many_rounds(stages: Callable[[str], Stage], family: str) -> None:
    print(family, dict(play_all(stages(family), range(100, 160))))
