"""Method `gate` over a stream: each slot is compared with the last kept copy of each cell as it arrives. Owns what must
be remembered between slots, which never grows; knows nothing of windows, encoders or where slots come from.

The rules are those of evs/gate.py without the cap, which would need to know the whole clip. A stream's floor may be 0:
a slot in which nothing changed then keeps nothing, and whoever reads it shows the last kept copies in its place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evs.blocks import BlockMeans
from evs.count import exact_share
from evs.gate import GateRules, find_reason, highest
from evs.selection import WholeReason


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GatedSlot:
    """keep: (P,) bool. changed: cells that no longer look like their last kept copy; all, for the first slot. whole:
    the rule that kept the slot whole, None where none did."""

    keep: npt.NDArray[np.bool_]
    changed: int
    whole: WholeReason | None


class StreamGate:
    """Takes the slots of one stream in order. It remembers one mean a block: the last kept copy of each cell."""

    def __init__(self, rules: GateRules) -> None:
        """Raises ValueError for rules with a cap."""
        if rules.rate is not None:
            raise ValueError("a stream has no end, so no share of it can be kept: rate must be None")
        self._rules = rules
        self._count = 0
        self._last_kept: npt.NDArray[np.int32] | None = None

    def feed(self, blocks: BlockMeans) -> GatedSlot:
        """blocks of the next slot: means (1, J, P).

        Worked example, one block a cell, threshold 0.1, refresh 4, floor 0; cells shown by their level:

            slot   cells              changed   kept
            0      .0 .0 .0 .0 .0     5         all    first
            1      .0 .0 .0 .5 .0     1         4th
            2      .0 .0 .0 .5 .0     0         none
            3      .9 .9 .9 .9 .0     4         all    cut
            4      .9 .9 .9 .9 .0     0         all    refresh
        """
        now, rules = blocks.means[0], self._rules
        cells = now.shape[1]
        slot, self._count = self._count, self._count + 1
        if self._last_kept is None:
            self._last_kept = now.copy()
            return GatedSlot(keep=np.ones(cells, dtype=np.bool_), changed=cells, whole="first")
        difference = np.abs(now - self._last_kept).max(0).astype(np.float32) / np.float32(blocks.white)
        passed = difference > np.float32(rules.threshold)
        changed = int(passed.sum())
        whole = find_reason(slot, rules.refresh, is_cut=changed > exact_share(rules.scene_cut) * cells)
        keep = np.ones(cells, dtype=np.bool_) if whole is not None else passed
        if whole is None:
            keep[highest(difference, rules.floor)] = True
        np.copyto(self._last_kept, now, where=keep)
        return GatedSlot(keep=keep, changed=changed, whole=whole)
