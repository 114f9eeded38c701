"""The coded pictures of a clip as numbers, and which stretches of them show the pictures that are wanted.

Pure arithmetic: knows nothing of demuxers, decoders or pixels. The pictures' data is not held, so a long clip costs a
few bytes for each picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NO_TIME = -(2**63)
# Longer than nearly every encoder lets a group of pictures become.
LOOK_BACK = 300

Ticks = npt.NDArray[np.int64]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PacketTable:
    """One row for each packet, in decoding order; times in the stream's own units.

    ticks: when the picture is shown (when it is decoded, where the file says no more), else NO_TIME.
    decode_ticks: when it is decoded, else NO_TIME. sizes: bytes. durations: 0 where the file does not say.
    is_key: the file calls it a point to start decoding from. is_shown: neither hidden nor cut off by an edit list.
    """

    ticks: Ticks
    decode_ticks: Ticks
    sizes: Places
    durations: Ticks
    is_key: npt.NDArray[np.bool_]
    is_shown: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.ticks)

    def shown_ticks(self) -> Ticks:
        """Rising times of the pictures the packets promise."""
        return np.unique(self.ticks[self.is_shown & (self.ticks != NO_TIME)])

    def row(self, place: int) -> tuple[int, int, int, bool]:
        """What tells a packet from its neighbours when it is read again."""
        return (
            int(self.ticks[place]), int(self.decode_ticks[place]), int(self.sizes[place]), bool(self.is_key[place]),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Packets [start, stop), fed to a decoder that was emptied before and is emptied after."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Groups:
    """Groups of pictures: starts[g] is the packet that decoding of group g can begin with; starts[0] is 0.

    tail: how many packets after a wanted one are also decoded (the second field of a picture).
    """

    table: PacketTable
    starts: Places
    tail: int = 0

    def plan(self, wanted: Sequence[int]) -> tuple[Span, ...]:
        """The shortest stretches that show the wanted ticks; what overlaps or touches is one stretch.

        Worked example, packets by time shown, K for a key: K0 2 1 | K5 4 3 6 7 | K8 9. For 6: [3, 7). For 4, shown
        before its key, which may lean on the group before: [0, 5). For 1 and 9: [0, 3) and [8, 10).
        """
        places = self.places_of(wanted)
        return _merge([(self._entry(place), min(place + 1 + self.tail, len(self.table))) for place in places.tolist()])

    def places_of(self, wanted: Sequence[int]) -> Places:
        """Packets of the pictures shown at these ticks."""
        is_wanted = np.isin(self.table.ticks, np.asarray(wanted, dtype=np.int64))
        return np.flatnonzero(self.table.is_shown & is_wanted)

    def survey(self, damaged: Sequence[int]) -> tuple[tuple[Span, ...], frozenset[int]]:
        """Whole groups round the damaged ticks: the stretches to decode, and every tick those groups should show.

        Decoding begins some way before each, in case the key it starts with is none.
        """
        places = self.places_of(damaged)
        spans: list[tuple[int, int]] = []
        ticks: set[int] = set()
        for group in np.unique(np.searchsorted(self.starts, places, side="right") - 1).tolist():
            start, stop = int(self.starts[group]), self._stop(group)
            inside = self.table.ticks[start:stop][self.table.is_shown[start:stop]]
            ticks.update(inside.tolist())
            before = int(np.searchsorted(self.starts, max(start - LOOK_BACK, 0), side="right")) - 1
            spans.append((int(self.starts[max(min(before, group - 1), 0)]), stop))
        return _merge(spans), frozenset(ticks)

    def has_leading(self) -> bool:
        """Whether a picture is shown before the key that it follows in the file (an open group)."""
        keys = self.table.ticks[self.starts[1:]].repeat(np.diff(np.append(self.starts[1:], len(self.table))))
        inside = self.table.ticks[len(self.table) - len(keys) :]
        return bool((inside[inside != NO_TIME] < keys[inside != NO_TIME]).any())

    def _entry(self, place: int) -> int:
        group = int(np.searchsorted(self.starts, place, side="right")) - 1
        while group > 0 and self.table.ticks[place] < self.table.ticks[self.starts[group]]:
            group -= 1
        return int(self.starts[group])

    def _stop(self, group: int) -> int:
        return int(self.starts[group + 1]) if group + 1 < len(self.starts) else len(self.table)


def find_groups(table: PacketTable, *, tail: int) -> Groups:
    """Cut at the key packets."""
    keys = np.flatnonzero(table.is_key & (table.ticks != NO_TIME))
    return Groups(table=table, starts=np.unique(np.concatenate(([0], keys))).astype(np.int64), tail=tail)


def one_group(table: PacketTable) -> Groups:
    """Nothing to start from but the beginning, and nothing to end with but the end."""
    return Groups(table=table, starts=np.zeros(1, dtype=np.int64), tail=len(table))


def _merge(spans: list[tuple[int, int]]) -> tuple[Span, ...]:
    merged: list[Span] = []
    for start, stop in sorted(spans):
        if merged and start <= merged[-1].stop:
            merged[-1] = Span(start=merged[-1].start, stop=max(stop, merged[-1].stop))
        else:
            merged.append(Span(start=start, stop=stop))
    return tuple(merged)
