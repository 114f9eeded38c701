"""Methods `uniform` and `random`: as many cells as `evs` keeps, chosen without a look at the clip. Owns these picks;
knows only the shape and the rate."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evs.count import count_kept
from evs.selection import Selection, WholeSlot


def keep_uniform(slots: int, cells_per_slot: int, rate: float) -> Selection:
    """Slot 0 whole, then n of the N later cells, evenly spread in reading order over slots: floor((i + 1/2) * N / n).

    Worked example: T = 3, P = 4, rate 0.4 keeps 7, that is 3 of the 8 later cells: places 1, 4 and 6.
    """
    later = cells_per_slot * (slots - 1)
    wanted = count_kept(slots, cells_per_slot, rate) - cells_per_slot
    places = (2 * np.arange(wanted) + 1) * later // (2 * max(wanted, 1))
    return _select("uniform", slots, cells_per_slot, places)


def keep_random(slots: int, cells_per_slot: int, rate: float, *, seed: int) -> Selection:
    """Slot 0 whole, then the later cells that drew the smallest numbers.

    The draws are the raw words of Philox, the one stream that numpy promises never to change: a seed means the same
    cells on every machine and version.
    """
    later = cells_per_slot * (slots - 1)
    wanted = count_kept(slots, cells_per_slot, rate) - cells_per_slot
    draws = np.random.Philox(key=seed).random_raw(later)
    return _select("random", slots, cells_per_slot, np.argsort(draws, kind="stable")[:wanted])


def _select(method: str, slots: int, cells_per_slot: int, places: npt.NDArray[np.intp]) -> Selection:
    """Slot 0 whole and these places among the later cells."""
    keep = np.zeros(slots * cells_per_slot, dtype=np.bool_)
    keep[:cells_per_slot] = True
    keep[cells_per_slot + places] = True
    return Selection(
        keep=keep.reshape(slots, cells_per_slot), method=method, whole=(WholeSlot(slot=0, reason="first"),)
    )
