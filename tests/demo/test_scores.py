"""The arithmetic of scores: shares, paired intervals, recall; and ways that keep as many cells as the gate."""

from __future__ import annotations

import numpy as np
import pytest

from demo.scores import Mark, compare, count_by_kind, recall_at_1, share_right
from demo.ways import DEFAULT, OFF, WAYS, choose_ways, options_for
from evs.count import count_kept
from runner.messages import EvsUsage


def marks(rights: str, *, per_clip: int = 2) -> list[Mark]:
    """One mark a letter, right for r."""
    return [
        Mark(clip=place // per_clip, kind="ab"[place % 2], is_right=letter == "r")
        for place, letter in enumerate(rights)
    ]


def test_shares() -> None:
    assert share_right(marks("rrwr")) == 0.75
    assert count_by_kind(marks("rrwr")) == {"a": (1, 2), "b": (2, 2)}
    with pytest.raises(ValueError, match="no marks"):
        share_right([])


def test_the_worked_difference() -> None:
    ours = [*marks("rr"), Mark(clip=1, kind="a", is_right=False)]
    theirs = [*marks("rw"), Mark(clip=1, kind="a", is_right=False)]
    assert compare(ours, theirs).points == pytest.approx(100 / 3)


def test_an_interval_holds_its_difference_and_shrinks_with_clips() -> None:
    """Clips are what is drawn: a hundred clips of two questions give a narrower interval than ten."""
    few, many = (compare(marks("rrrw" * n), marks("rrww" * n)) for n in (5, 50))
    for found in (few, many):
        assert found.low <= found.points == 25 <= found.high
    assert many.high - many.low < (few.high - few.low) / 2


def test_other_questions_are_refused() -> None:
    with pytest.raises(ValueError, match="different questions"):
        compare(marks("rr"), marks("rr", per_clip=1))


def test_the_worked_recall() -> None:
    texts = np.array([[1, 0], [0, 1]], dtype=np.float32)
    clips = np.array([[0.9, 0.1], [0.8, 0.6]], dtype=np.float32)
    assert recall_at_1(texts, clips, ["one", "two"]) == 1.0
    assert recall_at_1(texts, clips[::-1], ["one", "two"]) == 0.0
    assert recall_at_1(texts, clips[::-1], ["same", "same"]) == 1.0


@pytest.mark.parametrize(("slots", "cells"), [(8, 20), (12, 16), (10, 15)])
def test_as_many_cells_as_the_gate_kept(slots: int, cells: int) -> None:
    """The rate asked for keeps the very count, for every count that a gate can keep."""
    way = next(way for way in WAYS if way.like_gate)
    for kept in range(cells, slots * cells + 1):
        gated = EvsUsage(
            method="gate", frames=2 * slots, slots=slots, cells=slots * cells, kept=kept, kept_per_slot=(),
            encoder_cells=kept, encoder="reuse",
        )  # fmt: skip
        options = options_for(way, gated)
        assert options.rate is not None
        assert count_kept(slots, cells, options.rate) == kept


def test_ways_are_chosen_by_name() -> None:
    """The two that others are measured on are always there."""
    assert choose_ways([]) == WAYS
    assert choose_ways(["gate / skip"])[:2] == (OFF, DEFAULT)
    with pytest.raises(ValueError, match="no such ways"):
        choose_ways(["gate"])
