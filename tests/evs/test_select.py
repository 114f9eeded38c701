"""Each method by its policy, and the promise of the one that waits for the encoder."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evs.policy import EvsPolicy, make_policy
from evs.select import PendingSelection, select_cells, start_selection
from evs.selection import Selection
from evs.similarity import keep_turned
from tests.evs import clips

POLICIES = [
    make_policy("none"), make_policy("gate"), make_policy("gate", rate=0.6), make_policy("uniform", rate=0.6),
    make_policy("random", rate=0.6, seed=5), make_policy("evs", rate=0.6),
]  # fmt: skip


def choose(pixels: clips.Pixels, policy: EvsPolicy, embeddings: torch.Tensor) -> Selection:
    match start_selection(pixels, clips.cell_grid(pixels), policy):
        case PendingSelection() as pending:
            return pending.finish(embeddings)
        case Selection() as selection:
            return selection


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: f"{policy.method}-{policy.rate}")
@pytest.mark.parametrize("slots", [1, 2, 3, 9])
def test_every_method_names_itself_and_keeps_slot_0(policy: EvsPolicy, slots: int) -> None:
    pixels = clips.add_noise(clips.still(slots), 20)
    selection = choose(pixels, policy, torch.randn(slots, 6, 4, generator=torch.Generator().manual_seed(0)))
    assert selection.method == policy.method
    assert selection.keep.shape == (slots, 6)
    assert selection.keep[0].all()


@settings(deadline=None)
@given(
    slots=st.integers(1, 8), h=st.integers(1, 4), w=st.integers(1, 5), percent=st.integers(0, 99),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_a_pending_count_is_kept(slots: int, h: int, w: int, percent: int, seed: int) -> None:
    """The count promised from the shape is the count after encoding, and that of both baselines."""
    pixels = np.zeros((2 * slots, 3, 8 * h, 8 * w), dtype=np.uint8)
    cells, rate = clips.cell_grid(pixels, 8), percent / 100
    pending = start_selection(pixels, cells, make_policy("evs", rate=rate))
    assert isinstance(pending, PendingSelection)
    embeddings = torch.randn(slots * h * w, 3, generator=torch.Generator().manual_seed(seed))
    selection = pending.finish(embeddings)
    assert pending.kept == selection.kept
    for method in ("uniform", "random"):
        assert select_cells(pixels, cells, make_policy(method, rate=rate)).kept == pending.kept
    whole = embeddings.reshape(slots, h * w, 3)
    assert (pending.finish(whole).keep == keep_turned(whole, rate).keep).all()


def test_gate_with_rate_0_is_gate() -> None:
    pixels = clips.add_noise(clips.still(9), 12)
    cells = clips.cell_grid(pixels)
    free, capped = (select_cells(pixels, cells, make_policy("gate", rate=rate)) for rate in (None, 0.0))
    assert (free.keep == capped.keep).all()
    assert free.whole == capped.whole


def test_two_clips_do_not_touch() -> None:
    """A clip's Selection is its own, whatever was selected before it."""
    one, two = clips.add_noise(clips.still(5), 12), clips.still(5, seed=3)
    cells, policy = clips.cell_grid(one), make_policy("gate")
    alone = select_cells(two, cells, policy).keep
    select_cells(one, cells, policy)
    assert (select_cells(two, cells, policy).keep == alone).all()


def test_pixels_are_left_as_they_were() -> None:
    pixels = clips.add_noise(clips.still(5), 12)
    before = pixels.copy()
    pixels.setflags(write=False)
    select_cells(pixels, clips.cell_grid(pixels), make_policy("gate"))
    assert (pixels == before).all()


def test_a_rate_may_be_a_whole_number() -> None:
    pixels = clips.still(3)
    assert select_cells(pixels, clips.cell_grid(pixels), make_policy("uniform", rate=0)).kept_share == 1


def test_evs_has_no_selection_before_the_encoder() -> None:
    pixels = clips.still(2)
    with pytest.raises(ValueError, match="'evs' chooses after the encoder"):
        select_cells(pixels, clips.cell_grid(pixels), make_policy("evs", rate=0.5))


def test_embeddings_of_another_clip_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(3, 5, 2\) embeddings do not fit 3 slots of 6 cells"):
        PendingSelection(slots=3, cells_per_slot=6, rate=0.5).finish(torch.ones(3, 5, 2))


def test_a_promise_without_a_count_is_refused() -> None:
    with pytest.raises(ValueError, match=r"below 1, got 1\.5"):
        PendingSelection(slots=3, cells_per_slot=6, rate=1.5)
