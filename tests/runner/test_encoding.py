"""What the encoder computes: `reuse` equals its slow oracle however the work is cut and whatever stands beside it, is
nearer to `full` than `skip` is, and slots that keep nothing cost nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from evs.policy import Encoder, make_policy
from evs.selection import Selection
from runner import entering
from runner.encoder_queue import EncoderQueue
from runner.items import Decoded, MediaItem
from runner.plan import StepPlan
from runner.requests import EvsOptions
from tests.checkpoints import BUILDERS
from tests.harness import LocalEngine, local_engine, rebuilt
from tests.oracle import Clip, as_message, load_oracle, noise_clip, noise_picture
from tests.reuse_oracle import encode_with_owners

TOLERANCE = 1e-5
FAMILIES = ("gemma3", "llava_onevision", "paligemma", "qwen2_5_vl", "qwen2_vl", "qwen3_vl", "smolvlm")
CLIP = noise_clip(1, num_frames=10, size=(112, 140), fps=2.0)
OTHER = noise_clip(2, num_frames=6, size=(84, 84), fps=2.0)


@pytest.fixture(scope="module", params=FAMILIES)
def engine(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]) -> Iterator[tuple[LocalEngine, Path]]:
    assert request.param in BUILDERS
    folder = checkpoint(request.param)
    with local_engine(folder) as local:
        yield local, folder


def decoded_of(local: LocalEngine, part: Any) -> Decoded:
    return local.lay_out([as_message([part, "?"])], EvsOptions(method="none")).items[0].decoded


def random_keep(decoded: Decoded, seed: int, share: float) -> np.ndarray:
    """Slot 0 whole, some slots empty, the rest at random."""
    rng = np.random.default_rng(seed)
    shape = (decoded.grid.slots, decoded.grid.cells_per_slot)
    keep = rng.random(shape) < share
    keep[rng.random(shape[0]) < 0.2] = False
    keep[0] = True
    return keep


def make_item(decoded: Decoded, keep: np.ndarray, encoder: Encoder) -> MediaItem:
    policy = make_policy("random", rate=0.5, encoder=encoder)
    return MediaItem.of(decoded, Selection(keep=keep, method="random"), policy)


def encode(local: LocalEngine, folder: Path, items: list[MediaItem], *, patches: int = 1 << 20) -> list[torch.Tensor]:
    """(1 + planes, kept, D) of each, encoded together in steps of so many patches."""
    fresh = rebuilt(local, folder)
    store, runner = fresh.engine.store, fresh.engine.runner
    while not all((entry := store.get(item)) and entry.is_complete for item in items):
        queue = EncoderQueue(store, patches)
        queue.plan(items)
        runner.run(StepPlan(encoder=tuple(queue.work), rows=()))
    entries = [store.get(item) for item in items]
    assert not any(entry.carry for entry in entries if entry)
    return [entry.rows for entry in entries if entry]


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.shape == expected.shape
    assert (got - expected).abs().max() < TOLERANCE * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize(("seed", "share"), [(0, 0.1), (1, 0.3), (2, 0.6)])
def test_reuse_equals_the_slow_oracle(engine: tuple[LocalEngine, Path], seed: int, share: float) -> None:
    """All at once, and cut at every slot or anywhere: what is carried from part to part is what was there."""
    local, folder = engine
    decoded = decoded_of(local, CLIP)
    item = make_item(decoded, random_keep(decoded, seed, share), "reuse")
    expected = encode_with_owners(*load_oracle(folder), item.grid, item.entering.present)
    expected = expected[:, torch.from_numpy(item.selection.kept_cells)]
    assert item.encoder == "reuse"
    for patches in (1 << 20, 150, 1):
        assert_close(encode(local, folder, [item], patches=patches)[0], expected)


def test_the_oracle_and_reuse_are_full_when_all_is_kept(
    engine: tuple[LocalEngine, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    local, folder = engine
    decoded = decoded_of(local, CLIP)
    keep = np.ones((decoded.grid.slots, decoded.grid.cells_per_slot), dtype=np.bool_)
    assert make_item(decoded, keep, "reuse").encoder == "full"
    monkeypatch.setattr(entering, "FULL_SHARE", 1.0)
    reuse, full = make_item(decoded, keep, "reuse"), make_item(decoded, keep, "full")
    expected = encode_with_owners(*load_oracle(folder), full.grid, np.ones_like(full.entering.present))
    for got in encode(local, folder, [reuse, full]):
        assert_close(got, expected)
    assert reuse.encoding_key != full.encoding_key


def test_reuse_is_nearer_to_full_than_skip(engine: tuple[LocalEngine, Path]) -> None:
    """On a clip as the methods see them: what is dropped looks like what was kept before."""
    local, folder = engine
    frames = np.repeat(noise_clip(3, num_frames=1, size=(112, 140)).frames, 12, axis=0)
    for number, frame in enumerate(frames):
        frame[20:60, 10 * number % 90 : 10 * number % 90 + 40] = 255 - 9 * number
    item = local.lay_out([as_message([Clip(frames=frames, fps=2.0), "?"])], EvsOptions(method="gate")).items[0]
    keep = item.selection.keep if item.selection.kept_share < 0.7 else random_keep(item.decoded, 4, 0.4)
    modes: tuple[Encoder, ...] = ("full", "reuse", "skip")
    full, reuse, skip = encode(local, folder, [make_item(item.decoded, keep, mode) for mode in modes])
    assert (reuse - full).square().mean() < 0.5 * (skip - full).square().mean()


@pytest.mark.parametrize("patches", [1 << 20, 170, 1])
def test_clips_in_different_modes_are_encoded_as_each_alone(engine: tuple[LocalEngine, Path], patches: int) -> None:
    """Clips of two sizes in all modes and a picture in one batch, whole and cut."""
    local, folder = engine
    first, second = decoded_of(local, CLIP), decoded_of(local, OTHER)
    items = [
        make_item(first, random_keep(first, 5, 0.3), "reuse"),
        make_item(second, random_keep(second, 6, 0.4), "skip"),
        make_item(first, random_keep(first, 7, 0.3), "full"),
        local.lay_out([as_message([noise_picture(3, size=(80, 96)), "?"])]).items[0],
        make_item(second, random_keep(second, 8, 0.5), "reuse"),
        make_item(first, random_keep(first, 9, 0.2), "skip"),
    ]
    alone = [encode(local, folder, [item])[0] for item in items]
    for got, expected in zip(encode(local, folder, items, patches=patches), alone, strict=True):
        assert_close(got, expected)


def test_skip_sees_nothing_but_its_own_slot(engine: tuple[LocalEngine, Path]) -> None:
    """Each slot as it is encoded alone; and reuse differs from it, so that the oracle above compares something."""
    local, folder = engine
    decoded = decoded_of(local, CLIP)
    keep = random_keep(decoded, 10, 0.3)
    whole = encode(local, folder, [make_item(decoded, keep, "skip")])[0]
    slots = []
    for slot in np.flatnonzero(keep.any(axis=1)):
        one = np.zeros_like(keep)
        one[slot] = keep[slot]
        slots += encode(local, folder, [make_item(decoded, one, "skip")])
    assert_close(whole, torch.cat(slots, dim=1))
    assert (whole - encode(local, folder, [make_item(decoded, keep, "reuse")])[0]).abs().max() > 100 * TOLERANCE
