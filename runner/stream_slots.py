"""From a stream's frames to slots whose changed cells are known, and who shows the others. Owns the last kept copy of
each cell, as pixels to compare with and as the item that holds its encoding; knows no windows and no prompts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from evs.blocks import measure_blocks
from evs.selection import Selection
from evs.stream import StreamGate
from runner.cells import cell_grid
from runner.families.base import Family
from runner.items import Decoded, Link, MediaItem
from runner.stream_options import StreamSettings
from vision.frames import VideoFrames
from vision.stream_cage import StreamFrame


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slot:
    """One slot of a stream, by its number on the grid of times.

    keep: (P,) bool, the cells that are encoded from this slot, as `item` (None where there are none). changed: how many
    of them looked otherwise than before. owners, ranks: for each of P places the item whose encoding shows it from now
    on, and the row in it. times_s count from the stream's first picture; ready_s is a clock's time.
    """

    number: int
    seqs: tuple[int, ...]
    times_s: tuple[float, ...]
    size: tuple[int, int]
    source_size: tuple[int, int]
    origin_s: float
    keep: np.ndarray
    changed: int
    item: MediaItem | None
    owners: tuple[MediaItem, ...]
    ranks: np.ndarray
    ready_s: float


class SlotMaker:
    """Takes the frames of one stream in order. It holds one slot's frames, the items that own a cell, and with `reuse`
    those since the last slot that was kept whole. passes: nobody will ask for this stream again, see MediaItem."""

    def __init__(self, family: Family, settings: StreamSettings, *, passes: bool) -> None:
        self._family, self._settings, self._passes = family, settings, passes
        self._gate = StreamGate(settings.rules)
        self._frames: list[StreamFrame] = []
        self._number = -1
        self._owners: list[MediaItem] = []
        self._last: MediaItem | None = None
        self._ranks = np.zeros(0, dtype=np.int64)

    def add(self, frame: StreamFrame) -> list[Slot]:
        """Slots that are complete: all their places are taken, or a later slot has begun."""
        number, place = divmod(frame.record.place, self._settings.frames_per_slot)
        slots = self.finish() if self._frames and number != self._number else []
        self._frames.append(frame)
        self._number = number
        return slots + (self.finish() if place == self._settings.frames_per_slot - 1 else [])

    def finish(self) -> list[Slot]:
        """The slot that was begun, if any, as it is: places that no frame took show the frame before."""
        if not self._frames:
            return []
        frames, self._frames = self._frames, []
        return [self._make(frames)]

    def forget(self) -> tuple[int, ...]:
        """Frames of the slot that was begun; they are let go of."""
        frames, self._frames = self._frames, []
        return tuple(frame.record.seq for frame in frames)

    def _make(self, frames: list[StreamFrame]) -> Slot:
        decoded = self._decode(frames)
        grid = decoded.grid
        gated = self._gate.feed(measure_blocks(grid.pixels, cell_grid(grid)))
        keep = gated.keep
        item = None
        if keep.any():
            selection = Selection(keep=keep[None], method=self._settings.policy.method)
            item = self._last = MediaItem.of(
                decoded, selection, self._settings.policy, self._link(keep), passes=self._passes
            )
            self._hand_over(item, keep)
        first = frames[0].record
        return Slot(
            number=self._number, seqs=tuple(frame.record.seq for frame in frames),
            times_s=tuple(frame.record.time_s for frame in frames),
            size=(first.height, first.width), source_size=first.source_size, origin_s=first.origin_s,
            keep=keep, changed=gated.changed, item=item, owners=tuple(self._owners), ranks=self._ranks.copy(),
            ready_s=time.monotonic(),
        )  # fmt: skip

    def _link(self, keep: np.ndarray) -> Link | None:
        """With `reuse` dropped places show what the slots before left there."""
        if self._settings.policy.encoder != "reuse":
            return None
        return Link(before=None if keep.all() else self._last)

    def _decode(self, frames: list[StreamFrame]) -> Decoded:
        padding = self._settings.frames_per_slot - len(frames)
        padded = [*frames, *frames[-1:] * padding]
        record = frames[0].record
        times = tuple(frame.record.time_s for frame in padded)
        video = VideoFrames(
            kind="video", pixels=np.stack([frame.pixels for frame in padded]), times_s=times,
            frame_indices=tuple(frame.record.seq for frame in padded), duration_s=times[-1], source_fps=None,
            source_size=record.source_size, codec="", container="stream", num_frames=len(frames),
        )  # fmt: skip
        return Decoded.of(video, self._family.patch_grid(video))

    def _hand_over(self, item: MediaItem, keep: np.ndarray) -> None:
        """The kept places are shown by `item` from now on."""
        if not self._owners:
            self._owners = [item] * len(keep)
            self._ranks = np.zeros(len(keep), dtype=np.int64)
        for rank, place in enumerate(np.flatnonzero(keep).tolist()):
            self._owners[place] = item
            self._ranks[place] = rank
