"""A step encodes slots of different clips together, first come first served, within its budget; beside decodes it
encodes little; mixed modes change no answer, whole, cut, or beside a request that leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from evs.policy import make_policy
from evs.selection import Selection
from runner.encoder_queue import EncoderQueue
from runner.entering import EnteringPatches
from runner.items import MediaItem
from runner.requests import EvsOptions
from tests.harness import LocalEngine, local_engine, rebuilt
from tests.oracle import as_message, noise_clip, noise_picture
from tests.runner.test_encoder_store import make_store
from tests.runner.test_history import assert_same
from tests.runner.test_prompt import make_item as any_item

MODES = (
    EvsOptions(method="random", rate=0.5, encoder="reuse"),
    EvsOptions(method="uniform", rate=0.4, encoder="skip"),
    EvsOptions(method="none"),
    EvsOptions(method="random", rate=0.7, seed=2, encoder="full"),
    EvsOptions(method="evs", rate=0.6),
    EvsOptions(method="gate"),
)
CHATS = [
    [as_message([noise_clip(seed, num_frames=10 - seed, size=(96, 128 - 16 * seed)), "and", picture, "?"])]
    for seed, picture in enumerate([noise_picture(9, size=(80, 96))] * len(MODES))
]


def entering(*costs: int) -> EnteringPatches:
    return EnteringPatches(present=np.zeros((len(costs), 1), bool), before=np.cumsum([0, *costs]))


def test_worked_examples() -> None:
    clip = entering(4, 0, 2, 3, 0)
    assert [clip.reach(0, 5), clip.reach(0, 9), clip.reach(0, 3)] == [2, 5, 0]
    assert entering(0, 4, 2).next_stop(0) == 2
    assert clip.runs(0, 5) == [(0, 1), (2, 4)]


def item_of(keep: list[list[int]], encoder: str) -> MediaItem:
    """Cells of 4 patches."""
    whole = any_item(np.ones((len(keep), len(keep[0])), bool))
    policy = make_policy("random", rate=0.5, encoder=encoder)  # type: ignore[arg-type]
    return MediaItem.of(whole.decoded, Selection(keep=np.array(keep, bool), method="random"), policy)


def plan(items: list[MediaItem], patches: int) -> list[tuple[int, int, int]]:
    queue = EncoderQueue(make_store(1 << 20), patches)
    queue.plan(items)
    return [(items.index(work.item), work.slot_start, work.slot_stop) for work in queue.work]


def test_slots_are_taken_in_order_and_cost_what_enters() -> None:
    """Slots that keep nothing cost nothing, in any mode; nothing overtakes an item that was cut."""
    reuse = item_of([[1, 1, 1], [0, 0, 0], [1, 0, 0], [0, 0, 0]], "reuse")
    skip = item_of([[1, 1, 1], [0, 1, 0]], "skip")
    full = item_of([[1, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0]], "full")
    assert (reuse.encoder_cells, skip.encoder_cells, full.encoder_cells) == (4, 4, 6)
    assert plan([reuse, skip, full], 16 + 16 + 24) == [(0, 0, 4), (1, 0, 2), (2, 0, 1), (2, 2, 3)]
    assert plan([reuse, skip, full], 31) == [(0, 0, 4), (1, 0, 1)]
    assert plan([reuse, skip, full], 16) == [(0, 0, 4)]
    assert plan([full, skip], 12) == [(0, 0, 1)]
    assert plan([full, skip], 1) == [(0, 0, 1)]  # a slot larger than the budget goes alone
    assert plan([skip, skip], 16) == [(0, 0, 2)]


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl"])
def engine(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]) -> Iterator[tuple[LocalEngine, Path]]:
    folder = checkpoint(request.param)
    with local_engine(folder) as local:
        yield local, folder


def test_mixed_modes_answer_as_each_alone(engine: tuple[LocalEngine, Path]) -> None:
    """Law 4: all at once in one batch, in small chunks, and with some of them leaving in the middle."""
    local, folder = engine
    alone = [local.answer(chat, sampling=local.everything(3), evs=evs) for chat, evs in zip(CHATS, MODES, strict=True)]
    for patches, tokens in ((1 << 20, 2048), (60, 48)):
        other = rebuilt(local, folder, max_encoder_patches=patches, max_num_batched_tokens=tokens)
        other.engine.runner.encoder.patches.clear()
        ids = [
            other.submit(chat, sampling=other.everything(3), evs=evs) for chat, evs in zip(CHATS, MODES, strict=True)
        ]
        for _ in range(3):
            other.step()
        for gone in (ids[0], ids[3]):
            other.receive(other.engine.abort(gone, None))
        other.run()
        for number in (1, 2, 4, 5):
            assert_same(other.answers[ids[number], 0], alone[number])
        assert {mode for mode, _ in other.engine.runner.encoder.patches} == {"full", "skip", "reuse"}
        assert_same(other.answer(CHATS[0], sampling=other.everything(3), evs=MODES[0]), alone[0])
        entries = [other.engine.store.get(item) for item in other.lay_out(CHATS[0], MODES[0]).items]
        assert all(entry is not None and not entry.carry for entry in entries)


def test_decodes_wait_for_little_encoding(engine: tuple[LocalEngine, Path]) -> None:
    """While an answer is written each step gives it a token and encodes no more than the bound, or one slot; when none
    is, the large budget holds."""
    local, folder = engine
    other = rebuilt(local, folder, max_encoder_patches=1 << 20, max_encoder_patches_decoding=100)
    talk = other.submit([as_message(["hello"])], sampling=other.everything(60))
    other.step()
    waiting = [other.submit(chat, sampling=other.everything(2), evs=MODES[2]) for chat in CHATS[:3]]
    items = [item for chat in CHATS[:3] for item in other.lay_out(chat, MODES[2]).items]
    largest = max(item.grid.patches_per_slot for item in items)
    steps = 0
    while not all(other.answers[name, 0].finish_reason for name in waiting):
        before = len(other.answers[talk, 0].token_ids)
        report = other.engine.step()
        other.receive(report.deltas)
        encoded = sum(
            int(work.item.entering.before[work.slot_stop] - work.item.entering.before[work.slot_start])
            for work in report.plan.encoder
        )
        assert encoded <= max(100, largest)
        assert len(other.answers[talk, 0].token_ids) == before + 1
        steps += bool(report.plan.encoder)
    assert steps > 3
    other.run()
    other.submit(CHATS[3], evs=MODES[2])
    report = other.engine.step()
    other.receive(report.deltas)
    assert all(work.slot_stop == work.item.grid.slots for work in report.plan.encoder)
    other.run()
