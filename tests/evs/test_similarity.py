"""Method `evs`: the published rule, exactly."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evs.count import count_kept
from evs.selection import WholeSlot
from evs.similarity import NO_SCORE, keep_turned, score_turns
from tests.evs.oracles import evs_oracle

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def test_worked_example() -> None:
    embeddings = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 1.0]]])
    assert score_turns(embeddings).tolist() == [[0, 1 - 1 / math.sqrt(2)]]
    assert keep_turned(embeddings, 0.5).keep.tolist() == [[True, True], [False, False]]
    assert keep_turned(embeddings, 0.25).keep.tolist() == [[True, True], [False, True]]


@settings(deadline=None, max_examples=100)
@given(
    slots=st.integers(1, 6), cells=st.integers(1, 9), width=st.integers(1, 40), seed=st.integers(0, 999),
    percent=st.integers(0, 99), dtype=st.sampled_from(DTYPES),
)  # fmt: skip
def test_picks_are_those_of_the_formula(
    slots: int, cells: int, width: int, seed: int, percent: int, dtype: torch.dtype
) -> None:
    """Whole numbers, so that every sum is exact and ties are true ties: a float64 oracle in loops picks the same."""
    rng = np.random.default_rng(seed)
    values = rng.integers(-2, 3, (slots, cells, width)).astype(np.float64)
    selection = keep_turned(torch.from_numpy(values).to(dtype), percent / 100)
    assert selection.keep.tolist() == evs_oracle(values, Fraction(percent, 100))
    assert selection.kept == count_kept(slots, cells, percent / 100)


@pytest.mark.parametrize("dtype", DTYPES)
def test_picks_of_real_values_are_those_of_the_formula(dtype: torch.dtype) -> None:
    """What a low-precision encoder gives is scored in float64."""
    values = torch.randn(12, 30, 96, generator=torch.Generator().manual_seed(3))
    steady = values[:1].expand(12, -1, -1).clone()
    mixed = torch.where(torch.rand(12, 30, 1, generator=torch.Generator().manual_seed(4)) < 0.5, values, steady)
    embeddings = mixed.to(dtype)
    oracle = evs_oracle(embeddings.double().numpy(), Fraction(6, 10))
    assert keep_turned(embeddings, 0.6).keep.tolist() == oracle


@settings(deadline=None, max_examples=100)
@given(
    cells=st.integers(1, 20), width=st.integers(1, 300), seed=st.integers(0, 999), dtype=st.sampled_from(DTYPES),
    scale=st.sampled_from([1e-4, 1.0, 1e4]),
)  # fmt: skip
def test_identical_rows_score_exactly_zero(cells: int, width: int, seed: int, dtype: torch.dtype, scale: float) -> None:
    """Whatever their values, width and type: sqrt(x * x) is x, and x / x is 1."""
    rows = (torch.randn(1, cells, width, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)
    assert (score_turns(rows.expand(4, -1, -1)) == 0).all()


def test_roots_of_squares_are_exact() -> None:
    """Many rows at once, of one value each: a square root that is off by one bit anywhere shows."""
    rows = torch.rand(1, 200_000, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert (score_turns(rows.expand(2, -1, -1)) == 0).all()


def test_zero_rows_have_scores() -> None:
    """Zero to zero is the same; zero to something, either way, is a right angle."""
    embeddings = torch.tensor([[[0.0, 0.0]], [[0.0, 0.0]], [[3.0, 4.0]], [[0.0, 0.0]]])
    assert score_turns(embeddings).tolist() == [[0], [1], [1]]


def test_a_row_that_is_no_number_is_kept_first() -> None:
    """A broken encoder output changes neither the count nor the order of the others."""
    embeddings = torch.ones(3, 4, 2)
    embeddings[1, 2] = torch.tensor([math.nan, 1.0])
    embeddings[2, 1] = torch.tensor([math.inf, 1.0])
    scores = score_turns(embeddings)
    assert (scores == NO_SCORE).nonzero()[1].tolist() == [2, 1, 2]
    assert keep_turned(embeddings, 0.5).kept == 6


def test_static_clips_keep_the_earliest_cells() -> None:
    """All scores are 0: ties go to the earlier slot, then in reading order, with the exact count."""
    selection = keep_turned(torch.ones(4, 6, 8), 0.5)
    assert selection.kept_per_slot == (6, 6, 0, 0)
    assert keep_turned(torch.zeros(4, 6, 8), 0.7).kept_cells.tolist() == list(range(7))


def test_a_cut_is_kept_whole() -> None:
    """8 slots at rate 0.75 keep two: the first, and the one after the cut."""
    halves = torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(0))
    embeddings = halves.repeat_interleave(4, dim=0)
    selection = keep_turned(embeddings, 0.75)
    assert selection.kept_per_slot == (16, 0, 0, 0, 16, 0, 0, 0)
    assert selection.whole == (WholeSlot(slot=0, reason="first"),)


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_short_clips(slots: int) -> None:
    embeddings = torch.randn(slots, 5, 7, generator=torch.Generator().manual_seed(0))
    assert keep_turned(embeddings, 0.0).kept == 5 * slots
    assert keep_turned(embeddings, 0.9).kept == 5


@pytest.mark.parametrize("bad", [torch.ones(4, 3), torch.ones(2, 0, 3), torch.ones(2, 3, 4, dtype=torch.int64)])
def test_other_shapes_are_refused(bad: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"embeddings must be \(T, P, D\) floats"):
        keep_turned(bad, 0.5)
