"""How many tokens are tried follows from what was accepted and what it cost, and where nothing is accepted it costs
next to nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from runner.draft_depth import AcceptRate, DraftDepth, depths_up_to, expected_tokens

DEPTHS = depths_up_to(8)


def run(
    *, right: float, cost: Callable[[int], float], steps: int, seed: int = 0, batch: int = 1
) -> tuple[float, DraftDepth]:
    """Sequences whose guesses are right with that probability; returns tokens a second over those without guesses. A
    step of depth k takes cost(k), 1 at 0, give or take a tenth."""
    rng = np.random.default_rng(seed)
    depth = DraftDepth(DEPTHS)
    rates = [depth.new_rate() for _ in range(batch)]
    tokens = seconds = 0.0
    for _ in range(steps):
        chosen = depth.choose(batch, [(rate.value, 8) for rate in rates])
        took = cost(chosen) * rng.uniform(0.9, 1.1)
        depth.costs.learn(batch, chosen, took)
        seconds += took
        for rate in rates:
            wrong = np.flatnonzero(rng.random(chosen) >= right)
            accepted = int(wrong[0]) if len(wrong) else chosen
            rate.learn(chosen, accepted)
            depth.rate.learn(chosen, accepted)
            tokens += 1 + accepted
    return tokens / seconds / batch, depth


def test_depths_and_expected_tokens() -> None:
    assert depths_up_to(1) == (1,)
    assert depths_up_to(5) == (1, 2, 4, 5)
    assert depths_up_to(8) == (1, 2, 4, 8)
    assert [expected_tokens(0.5, depth) for depth in range(4)] == [0.0, 0.5, 0.75, 0.875]


def test_only_guesses_that_were_looked_at_count() -> None:
    """Of four of which the second is wrong, one was right, one wrong, and two are unknown."""
    once, twice = AcceptRate(0.5), AcceptRate(0.5)
    once.learn(4, 1)
    twice.learn(1, 1)
    twice.learn(1, 0)
    assert once.value == twice.value


@pytest.mark.parametrize("rows", [0.02, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("batch", [1, 8])
def test_where_nothing_is_accepted_nothing_is_lost(rows: float, batch: int) -> None:
    """Never under 0.97 of the speed without, from the first token on, though there is always something to guess."""
    speed, depth = run(right=0.0, cost=lambda k: 1 + rows * k, steps=400, batch=batch)
    assert speed > 0.97
    assert depth.reasons["not_accepted"] > 300


def test_where_all_is_accepted_most_is_tried() -> None:
    speed, depth = run(right=1.0, cost=lambda k: 1 + 0.05 * k, steps=400)
    assert speed > 0.9 * 9 / 1.4
    assert depth.reasons["measuring"] > 0, "without guesses nothing is known of their cost"


def test_between_them_cost_decides() -> None:
    """Of guesses that are right every second time two or more pay where a row costs little, and none where each costs
    as much as a step."""
    cheap, _ = run(right=0.6, cost=lambda k: 1 + 0.05 * k, steps=600)
    dear, depth = run(right=0.6, cost=lambda k: 1.0 + k, steps=600)
    assert cheap > 1.6
    assert dear > 0.95
    assert depth.reasons["not_accepted"] > 400


def test_what_was_given_up_is_tried_again() -> None:
    """An answer that begins to repeat itself is noticed within a few dozen steps."""
    _, depth = run(right=0.0, cost=lambda k: 1 + 0.05 * k, steps=50)
    rate = AcceptRate(0.01)
    chosen = []
    for _ in range(60):
        chosen.append(depth.choose(1, [(rate.value, 8)]))
        rate.learn(chosen[-1], chosen[-1])
    assert chosen[0] == 0 and 1 in chosen and chosen[-1] == 8


def test_a_sequence_without_a_guess_counts_for_nothing() -> None:
    depth = DraftDepth(DEPTHS)
    for tried in (0, *DEPTHS):
        depth.costs.learn(2, tried, 1.0 + 0.05 * tried)
    assert depth.choose(2, [(0.9, 0), (0.9, 0)]) == 0
    assert depth.reasons["no_match"] == 1
    assert depth.choose(2, [(0.9, 3), (0.9, 0)]) == 2, "no deeper than somebody's guess"
