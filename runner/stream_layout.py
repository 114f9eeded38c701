"""From a window of slots to a prompt over items that were encoded slot by slot. Owns the map from a window's cells to
the rows that show them; knows no queues and no streams.

The first slot of a window is shown whole, each place by its last kept copy, which may have been encoded long before.
Later slots show the cells that changed. So a window is a whole clip to the model, pruned like any other, and its rows
were encoded once for all windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evs.selection import Selection
from runner.admission import Admission
from runner.items import Decoded, MediaItem
from runner.prompt import Prompt
from runner.stream_options import StreamSettings, shaped_frames
from runner.stream_slots import Slot


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaidWindow:
    """items: those whose rows the prompt reads, in the order of their first row."""

    prompt: Prompt
    items: tuple[MediaItem, ...]
    kept: int


def lay_window(admission: Admission, settings: StreamSettings, slots: Sequence[Slot], *, start_s: float) -> LaidWindow:
    """Times in the prompt count from the window's start. Raises RequestError where it does not fit the model."""
    layout = _layout_item(admission, settings, slots, start_s)
    prompt, _ = admission.build(settings.chat, [layout])
    admission.check_length(len(prompt))
    sources = [(item, rank) for slot, keep in zip(slots, layout.selection.keep, strict=True)
               for item, rank in _sources(slot, keep)]  # fmt: skip
    laid = point_at(prompt, sources)
    for item in laid.items:
        admission.ingest.check_bytes(item)
    return laid


def point_at(prompt: Prompt, sources: Sequence[tuple[MediaItem, int]]) -> LaidWindow:
    """The prompt with its cells' rows read from other items. sources: for each kept cell in order, who shows it.

    Worked example, items X and Y: cells of ranks 0, 1, 2 shown by (Y, 4), (X, 0) and (Y, 5) become item 0, 1, 0 and
    rank 4, 0, 5; items are (Y, X).
    """
    numbers: dict[MediaItem, int] = {}
    for item, _ in sources:
        numbers.setdefault(item, len(numbers))
    cells = np.flatnonzero(prompt.rank >= 0)
    kept = prompt.rank[cells]
    owner, rank = prompt.item.copy(), prompt.rank.copy()
    owner[cells] = np.array([numbers[shown] for shown, _ in sources], dtype=np.int32)[kept]
    rank[cells] = np.array([place for _, place in sources], dtype=np.int64)[kept]
    shown = Prompt(
        token_ids=prompt.token_ids, positions=prompt.positions, item=owner, rank=rank,
        next_position=prompt.next_position,
    )  # fmt: skip
    return LaidWindow(prompt=shown, items=tuple(numbers), kept=len(sources))


def _layout_item(admission: Admission, settings: StreamSettings, slots: Sequence[Slot], start_s: float) -> MediaItem:
    """The window as one clip, of which only shape, times and kept cells are read."""
    times: list[float] = []
    for slot in slots:
        padding = settings.frames_per_slot - len(slot.times_s)
        times += [time_s - start_s for time_s in (*slot.times_s, *slot.times_s[-1:] * padding)]
    frames = shaped_frames(tuple(times), size=slots[0].size, source_size=slots[0].source_size, fps=settings.fps)
    keep = np.stack([slot.keep for slot in slots])
    keep[0] = True
    decoded = Decoded(kind="video", frames=frames, grid=admission.family.patch_grid(frames), pixels_key="")
    return MediaItem.of(decoded, Selection(keep=keep, method=settings.policy.method), settings.policy)


def _sources(slot: Slot, keep: np.ndarray) -> list[tuple[MediaItem, int]]:
    return [(slot.owners[place], int(slot.ranks[place])) for place in np.flatnonzero(keep).tolist()]
