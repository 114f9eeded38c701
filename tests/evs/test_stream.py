"""The gate over a stream keeps what the gate over the clip keeps, without its end and without a floor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evs.blocks import BlockMeans
from evs.gate import GateRules, run_rules
from evs.stream import StreamGate

RULES = GateRules(threshold=0.1, refresh=4, scene_cut=0.6, floor=1, rate=None)
LEVELS = [[0, 0, 0, 0, 0], [0, 0, 0, 5, 0], [0, 0, 0, 5, 0], [9, 9, 9, 9, 0], [9, 9, 9, 9, 0]]


def as_blocks(levels: np.ndarray) -> BlockMeans:
    """(T, P) levels of tenths, one block a cell."""
    return BlockMeans(means=levels.astype(np.int32)[:, None], white=10)


def feed(levels: np.ndarray, rules: GateRules) -> list[tuple[list[bool], int, str | None]]:
    gate = StreamGate(rules)
    slots = [gate.feed(as_blocks(levels[slot : slot + 1])) for slot in range(len(levels))]
    return [(slot.keep.tolist(), slot.changed, slot.whole) for slot in slots]


def test_worked_example() -> None:
    """The table in the docstring."""
    found = feed(np.array(LEVELS), replace(RULES, floor=0))
    everything, nothing = [True] * 5, [False] * 5
    assert found == [
        (everything, 5, "first"),
        ([False, False, False, True, False], 1, None),
        (nothing, 0, None),
        (everything, 4, "cut"),
        (everything, 0, "refresh"),
    ]


@pytest.mark.parametrize("floor", [0, 1, 2])
def test_a_stream_keeps_what_a_clip_keeps(floor: int) -> None:
    """Slot by slot = all at once, for any pixels: drift, flashes, cuts and stillness."""
    random = np.random.default_rng(floor)
    steps = random.integers(0, 3, (60, 7)) * (random.random((60, 7)) < 0.2)
    levels = steps.cumsum(0) % 10
    rules = replace(RULES, floor=floor, refresh=9)
    gated = run_rules(as_blocks(levels), rules)
    found = feed(levels, rules)
    assert [slot[0] for slot in found] == gated.keep.tolist()
    assert {index: slot[2] for index, slot in enumerate(found) if slot[2]} == {w.slot: w.reason for w in gated.whole}


def test_a_share_of_a_stream_is_refused() -> None:
    with pytest.raises(ValueError, match="rate"):
        StreamGate(replace(RULES, rate=0.5))
