"""Slots of a stream encoded by `reuse` are the slots of the clip that they make up, as the slow oracle has it, whatever
the cache forgot between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from evs.policy import make_policy
from evs.selection import Selection
from runner.encoder_queue import EncoderQueue
from runner.items import Decoded, Link, MediaItem
from runner.scheduler import StepPlan
from tests.harness import LocalEngine, local_engine, rebuilt
from tests.oracle import Clip, load_oracle, noise_clip
from tests.reuse_oracle import encode_with_owners
from tests.runner.test_encoding import FAMILIES, assert_close, decoded_of, make_item, random_keep
from vision.frames import VideoFrames

CLIP, OTHER = (noise_clip(seed, num_frames=14, size=(112, 140), fps=2.0) for seed in (4, 5))
POLICY = make_policy("gate", encoder="reuse")


@pytest.fixture(scope="module", params=FAMILIES)
def engine(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]) -> Iterator[tuple[LocalEngine, Path]]:
    folder = checkpoint(request.param)
    with local_engine(folder) as local:
        yield local, folder


def cut(local: LocalEngine, decoded: Decoded, slot: int) -> Decoded:
    """One slot of a clip as a stream gives it."""
    frames, size = decoded.frames, decoded.grid.temporal_patch_size
    part = slice(slot * size, (slot + 1) * size)
    one = VideoFrames(
        kind="video", pixels=decoded.grid.pixels[part], times_s=decoded.grid.times_s[part],
        frame_indices=tuple(range(size)), duration_s=1.0, source_fps=None, source_size=frames.source_size, codec="",
        container="stream", num_frames=size,
    )  # fmt: skip
    return Decoded.of(one, local.assembled.admission.family.patch_grid(one))


def link_slots(local: LocalEngine, decoded: Decoded, keep: np.ndarray) -> list[MediaItem]:
    """An item for each slot that keeps something."""
    items: list[MediaItem] = []
    for slot in np.flatnonzero(keep.any(axis=1)).tolist():
        link = Link(before=None if keep[slot].all() else items[-1])
        selection = Selection(keep=keep[slot : slot + 1], method="gate")
        items.append(MediaItem.of(cut(local, decoded, slot), selection, POLICY, link))
    return items


def encode(local: LocalEngine, wanted: Sequence[MediaItem], *, patches: int = 1 << 20) -> list[torch.Tensor]:
    """(1 + planes, kept, D) of each."""
    store, runner = local.engine.store, local.engine.runner
    for _ in range(1000):
        entries = [store.get(item) for item in wanted]
        if all(entry is not None and entry.is_complete for entry in entries):
            return [entry.rows.clone() for entry in entries if entry is not None]
        queue = EncoderQueue(store, patches)
        queue.plan(wanted)
        runner.run(StepPlan(encoder=tuple(queue.work), rows=()))
        store.keep_pinned(set(wanted))
    raise AssertionError("the encoder does not come to an end")


def make_slots(engine: tuple[LocalEngine, Path], clip: Clip, seed: int) -> tuple[list[MediaItem], torch.Tensor]:
    """Linked slots, the one in the middle whole, and what the oracle says of all their kept cells."""
    local, folder = engine
    decoded = decoded_of(local, clip)
    keep = random_keep(decoded, seed, 0.3)
    keep[len(keep) // 2] = True
    whole = make_item(decoded, keep, "reuse")
    expected = encode_with_owners(*load_oracle(folder), whole.grid, whole.entering.present)
    return link_slots(local, decoded, keep), expected[:, torch.from_numpy(whole.selection.kept_cells)]


def test_slots_equal_the_slow_oracle(engine: tuple[LocalEngine, Path]) -> None:
    """One after the other as they come, all asked for at once, and two streams side by side. Each costs its cells."""
    items, expected = make_slots(engine, CLIP, 1)
    others, expected_other = make_slots(engine, OTHER, 2)
    one_by_one = rebuilt(*engine)
    assert_close(torch.cat([encode(one_by_one, [item])[0] for item in items], dim=1), expected)
    patches = sum(int(item.entering.before[-1]) for item in items)
    assert sum(one_by_one.engine.runner.encoder.patches.values()) == patches
    beside = rebuilt(*engine)
    rows = encode(beside, [*items, *others], patches=300)
    assert_close(torch.cat(rows[: len(items)], dim=1), expected)
    assert_close(torch.cat(rows[len(items) :], dim=1), expected_other)
    assert beside.encoder_events()["encoded_again"] == 0


@pytest.mark.parametrize("slots", [1, 2])
def test_what_gave_way_is_made_again(engine: tuple[LocalEngine, Path], slots: int) -> None:
    """From the last whole slot on, and to the same rows, also where the store has room for next to nothing."""
    items, expected = make_slots(engine, CLIP, 3)
    stops = np.cumsum([0, *(item.selection.kept for item in items)])
    size = max(engine[0].engine.store.bytes_of(item) for item in items)
    tight = rebuilt(*engine, encoder_cache_bytes=slots * size)
    order = [*range(len(items)), len(items) - 1, 2]
    for number in order:
        tight.engine.store.keep_pinned(set())
        tight.engine.store.drop_unpinned()
        assert_close(encode(tight, [items[number]])[0], expected[:, stops[number] : stops[number + 1]])
    assert tight.encoder_events()["encoded_again"] == sum(count_before(items[number]) for number in order) > 0


def count_before(item: MediaItem) -> int:
    return 0 if item.before is None else 1 + count_before(item.before)


def test_links_have_keys_of_their_own(engine: tuple[LocalEngine, Path]) -> None:
    """The same pixels and cells after another picture are encoded otherwise; the same after the same are not."""
    local, _ = engine
    decoded = decoded_of(local, CLIP)
    keep = np.zeros((decoded.grid.slots, decoded.grid.cells_per_slot), dtype=np.bool_)
    keep[0] = keep[1] = True
    keep[2, :2] = True
    first, second, third = link_slots(local, decoded, keep)
    again = link_slots(local, decoded, keep)[2]
    other = MediaItem.of(third.decoded, third.selection, POLICY, Link(before=first))
    assert third.encoding_key == again.encoding_key != other.encoding_key
    assert second.encoding_key != MediaItem.of(second.decoded, second.selection, POLICY).encoding_key
    with pytest.raises(ValueError, match="needs a slot before"):
        MediaItem.of(third.decoded, third.selection, POLICY, Link(before=None))
