"""Which rows of a batch are read as keys where a segment does not simply see its own. Owns that arithmetic; knows
neither models nor why a place has no row of its own.

A picture of which only some patches have rows is seen whole by them: at a place without a row of this slot stands the
row of the last slot before that has one, its owner. When a clip is encoded in parts, the keys and values of the owners
that a later part reads are carried over to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segments:
    """Rows [cu_seqlens[i], cu_seqlens[i + 1]) see the keys index[cu_keys[i] : cu_keys[i + 1]], or, where index is None,
    each other. cu_seqlens, cu_keys: (segments + 1,) int64. index: (n,) int64, numbers of keys."""

    cu_seqlens: np.ndarray
    index: np.ndarray | None = None
    cu_keys: np.ndarray | None = None

    def keys(self) -> tuple[np.ndarray, np.ndarray]:
        """(index, cu_keys), spelled out."""
        if self.index is None or self.cu_keys is None:
            return np.arange(self.cu_seqlens[-1]), self.cu_seqlens
        return self.index, self.cu_keys


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyRows:
    """The keys of a batch's segments, by number: first the C carried ones, then the batch's own R rows.

    index (n,), cu_keys (segments + 1,): see Segments. rows, cols: (C,) int64, where the carried ones stand in their
    picture. carry_on: (C',) int64, numbers of the keys that the clip's next part will read. carried: for each layer
    (2, C, H, K), keys and values; empty as long as they have not been put in.
    """

    index: np.ndarray
    cu_keys: np.ndarray
    rows: np.ndarray
    cols: np.ndarray
    carry_on: np.ndarray
    carried: tuple[torch.Tensor, ...] = ()

    def carrying(self, carried: tuple[torch.Tensor, ...]) -> KeyRows:
        expected = len(self.rows)
        assert all(level.shape[1] == expected for level in carried) and bool(carried) == bool(expected), expected
        return replace(self, carried=carried)


def owner_slots(present: np.ndarray) -> np.ndarray:
    """(T, P) int64: the last slot <= t that has place p; -1 where none has yet. present: (T, P) bool.

    Worked example, 3 slots of 2 places, [[1, 0], [0, 1], [0, 0]]: [[0, -1], [0, 1], [0, 1]].
    """
    slots = np.arange(len(present))[:, None]
    owners: np.ndarray = np.maximum.accumulate(np.where(present, slots, -1), axis=0)
    return owners


def carried_places(present: np.ndarray, slot: int) -> np.ndarray:
    """(C,) int64, rising: places whose owner stands before `slot` and is read in `slot` or later.

    Worked example, [[1, 1, 1], [0, 0, 0], [0, 1, 0]]: before slot 1, places 0 and 2, for the next slot with rows has
    place 1 itself; before slot 3, none, for nothing is left to read them.
    """
    later = np.flatnonzero(present[slot:].any(axis=1))
    if not len(later):
        return np.zeros(0, np.int64)
    return np.flatnonzero(present[:slot].any(axis=0) & ~present[slot : slot + later[0] + 1].any(axis=0))


def borrow_keys(
    present: np.ndarray, slot_start: int, slot_stop: int, *, places: tuple[np.ndarray, np.ndarray]
) -> KeyRows:
    """What slots [slot_start, slot_stop) of a clip see: each slot that has rows sees a whole picture, in which a place
    stands for its owner; places that nobody owns yet are left out.

    present: (T, P) bool, all of the clip. places: row and column of each of the P places, as patch_places gives them.

    Worked example, present [[1, 1], [0, 1], [1, 0]]: rows are 0 1, 2, 3. All at once: keys [0, 1, 0, 2, 3, 2],
    cu_keys [0, 2, 4, 6]. Slots 1 and 2 alone: place 0 is carried, as key 0; keys [0, 1, 2, 1], cu_keys [0, 2, 4].
    """
    carried = carried_places(present, slot_start)
    owners, counted = owner_slots(present), np.cumsum(present).reshape(present.shape) - 1  # row numbers in the clip
    first = int(present[:slot_start].sum())
    number = np.full(present.shape[1], -1)
    number[carried] = np.arange(len(carried))

    def keys_of(slot: int) -> tuple[np.ndarray, np.ndarray]:
        """(n,) places that have a key in this slot, and the keys' numbers."""
        owned = np.flatnonzero(owners[slot] >= 0)
        owner = owners[slot][owned]
        own = counted[owner, owned] - first + len(carried)
        return owned, np.where(owner >= slot_start, own, number[owned])

    parts = [keys_of(slot)[1] for slot in range(slot_start, slot_stop) if present[slot].any()]
    onward = carried_places(present, slot_stop)
    owned, last = keys_of(slot_stop - 1)
    return KeyRows(
        index=np.concatenate(parts) if parts else np.zeros(0, np.int64),
        cu_keys=np.cumsum([0, *map(len, parts)]),
        rows=places[0][carried],
        cols=places[1][carried],
        carry_on=last[np.searchsorted(owned, onward)],
    )


def hand_over_keys(present: np.ndarray, *, places: tuple[np.ndarray, np.ndarray]) -> KeyRows:
    """What one slot of a stream sees: a whole picture, in which every place without a row is carried. The whole picture
    is carried on, place by place.

    present: (P,) bool, at least one. places: as borrow_keys takes them.

    Worked example, present [1, 0, 1]: place 1 is carried, as key 0, and the rows are keys 1 and 2; keys [1, 0, 2].
    """
    absent = np.flatnonzero(~present)
    index = np.where(present, np.cumsum(present) - 1 + len(absent), np.cumsum(~present) - 1)
    return KeyRows(
        index=index, cu_keys=np.array([0, len(present)]), rows=places[0][absent], cols=places[1][absent], carry_on=index
    )


def join_keys(parts: Sequence[KeyRows], num_rows: Sequence[int]) -> KeyRows:
    """The keys of batches put one behind the other: all that is carried first, then all rows.

    Worked example: a batch of 1 carried key and 2 rows with keys [0, 1, 2], then one of 1 carried key and 1 row with
    keys [0, 1]: keys [0, 2, 3, 1, 4].
    """
    num_carried = [len(part.rows) for part in parts]
    carried_before = np.cumsum([0, *num_carried])
    rows_before = np.cumsum([0, *num_rows]) + carried_before[-1]

    def renumber(index: np.ndarray, part: int) -> np.ndarray:
        own = index - num_carried[part] + rows_before[part]
        renumbered: np.ndarray = np.where(index < num_carried[part], index + carried_before[part], own)
        return renumbered

    levels = [part.carried for part in parts if part.carried]
    return KeyRows(
        index=np.concatenate([renumber(part.index, number) for number, part in enumerate(parts)]),
        cu_keys=np.cumsum([0, *np.concatenate([np.diff(part.cu_keys) for part in parts]).tolist()]),
        rows=np.concatenate([part.rows for part in parts]),
        cols=np.concatenate([part.cols for part in parts]),
        carry_on=np.concatenate([renumber(part.carry_on, number) for number, part in enumerate(parts)]),
        carried=tuple(torch.cat(level, dim=1) for level in zip(*levels, strict=True)),
    )


def own_keys(cu_seqlens: np.ndarray) -> KeyRows:
    """The keys of segments that see themselves."""
    none = np.zeros(0, np.int64)
    return KeyRows(index=np.arange(cu_seqlens[-1]), cu_keys=cu_seqlens, rows=none, cols=none, carry_on=none)
