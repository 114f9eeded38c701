"""Prompts do not wait for longer ones, nor are long ones kept out by short ones: bounds counted in steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil
from pathlib import Path

import pytest

from tests.harness import LocalEngine, local_engine, rebuilt
from tests.oracle import as_message, noise_clip, noise_picture
from tests.runner.test_history import assert_same

BUDGET = 16
LONG = ["word " * 300]
SHORT = ["hi"]


@pytest.fixture(scope="module")
def loaded(checkpoint: Callable[[str], Path]) -> Iterator[tuple[LocalEngine, Path]]:
    folder = checkpoint("qwen3_vl")
    with local_engine(folder) as local:
        yield local, folder


def submit(engine: LocalEngine, turn: list, priority: int = 0) -> tuple[str, int]:
    """Its id and the rows of its prompt."""
    name = engine.submit([as_message(turn)], sampling=engine.everything(1), priority=priority)
    (sequence,) = [s for _, s in engine.engine.scheduler._waiting if s.request_id == name]
    return name, len(sequence.prompt)


def steps_until(engine: LocalEngine, name: str, *, each_step: Callable[[], object] = lambda: None) -> int:
    for step in range(1, 1000):
        each_step()
        engine.step()
        if engine.answers[name, 0].finish_reason:
            return step
    raise AssertionError("it never ends")


def test_a_short_prompt_does_not_wait_for_long_ones(loaded: tuple[LocalEngine, Path]) -> None:
    """Behind four long prompts and beside another short one it takes the steps that the docstring promises."""
    engine = rebuilt(*loaded, max_num_batched_tokens=BUDGET, max_num_seqs=8)
    long = [submit(engine, LONG) for _ in range(4)]
    engine.step()
    (_, beside), (name, rows) = submit(engine, SHORT), submit(engine, SHORT)
    assert rows < 40 < 300 < long[0][1]
    bound = ceil((rows + beside) / (BUDGET // 2))
    assert steps_until(engine, name) <= bound < long[0][1] // BUDGET
    assert not any(engine.answers[name, 0].finish_reason for name, _ in long)
    engine.run()


def test_a_stream_of_short_prompts_does_not_keep_a_long_one_out(loaded: tuple[LocalEngine, Path]) -> None:
    """Two newcomers with every step: the first in line still gets its half."""
    engine = rebuilt(*loaded, max_num_batched_tokens=BUDGET, max_num_seqs=8)
    name, rows = submit(engine, LONG)
    newcomers = lambda: [submit(engine, SHORT) for _ in range(2)]  # noqa: E731
    # Newcomers that sample in the same step decode nothing, so that no row of the budget goes to decodes.
    assert steps_until(engine, name, each_step=newcomers) <= ceil(rows / (BUDGET - BUDGET // 2))
    engine.run()


def test_priority_comes_before_length_and_arrival(loaded: tuple[LocalEngine, Path]) -> None:
    """Lower goes first: a late long prompt overtakes earlier ones, and a short one of a later class waits for it."""
    engine = rebuilt(*loaded, max_num_batched_tokens=BUDGET, max_num_seqs=8)
    early, _ = submit(engine, LONG, priority=1)
    short, _ = submit(engine, SHORT, priority=1)
    late, rows = submit(engine, LONG, priority=0)
    assert steps_until(engine, late) == ceil(rows / BUDGET)
    assert not engine.answers[short, 0].token_ids and not engine.answers[early, 0].token_ids
    engine.run()


def test_alone_a_prompt_gets_the_whole_budget(loaded: tuple[LocalEngine, Path]) -> None:
    engine = rebuilt(*loaded, max_num_batched_tokens=BUDGET, max_num_seqs=8)
    name, rows = submit(engine, LONG)
    assert steps_until(engine, name) == ceil(rows / BUDGET)


def test_what_is_read_later_does_not_keep_out_what_is_read_first(loaded: tuple[LocalEngine, Path]) -> None:
    """There is room for one encoding. The first request has read its clip and holds its picture's when another comes
    that begins with the clip: the picture, which that one reads too, gives way."""
    turn = [noise_clip(5, num_frames=2, size=(64, 64)), noise_picture(6, size=(160, 160)), "?"]
    local, folder = loaded
    clip, picture = local.lay_out([as_message(turn)]).items
    store = local.assembled.store
    assert store.bytes_of(clip) < store.bytes_of(picture)
    alone = local.answer([as_message(turn)])
    engine = rebuilt(
        local, folder, max_num_batched_tokens=BUDGET, max_num_seqs=4, encoder_cache_bytes=store.bytes_of(picture),
        prefix_cache_bytes=0,
    )  # fmt: skip
    names = [engine.submit([as_message(turn)])]
    while (entry := engine.assembled.store.get(picture)) is None or not entry.is_complete:
        engine.step()
    names += [engine.submit([as_message(turn)], priority=priority) for priority in (1, 0)]
    engine.run(max_steps=500)
    for name in names:
        assert_same(engine.answers[name, 0], alone)


def test_a_step_keeps_its_budgets_apart(loaded: tuple[LocalEngine, Path]) -> None:
    """Text is prefilled while a clip before it is encoded slot by slot; rows and patches are each within their bound,
    and encodings that wait are within theirs."""
    clip = noise_clip(3, num_frames=12, size=(64, 96))
    engine = rebuilt(
        *loaded, max_num_batched_tokens=128, max_num_seqs=8, max_encoder_patches=24, encoder_cache_bytes=48 << 10
    )
    first, _ = submit(engine, [clip, "?"])
    second, _ = submit(engine, LONG)
    scheduler, store = engine.engine.scheduler, engine.assembled.store
    both = 0
    while engine.engine.has_work:
        report = engine.engine.step()
        engine.receive(report.deltas)
        patches = sum(
            work.item.grid.patches_per_slot * (work.slot_stop - work.slot_start) for work in report.plan.encoder
        )
        assert patches <= 24
        assert sum(work.stop - work.start for work in report.plan.rows) <= 128
        assert len({work.sequence for work in report.plan.rows}) == len(report.plan.rows)
        assert store.used_bytes <= store.max_bytes == 48 << 10
        both += patches > 0 and any(work.sequence.request_id == second for work in report.plan.rows)
    assert both > 1
    assert engine.answers[first, 0].finish_reason == engine.answers[second, 0].finish_reason == "length"
    scheduler.check_integrity()
