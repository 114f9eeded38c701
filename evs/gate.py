"""Method `gate`: keep a cell when it no longer looks like its last kept copy. Owns the difference D and rules 1 to 6;
knows pixels only through the means of their blocks.

D[t, p] is the largest, over the frames of the slot and the 8 x 8 blocks of the cell, of |mean of the block in slot t -
mean of the same block of the same frame in R[p]|, on a 0..1 scale, where R[p] is the last kept copy of the cell. Two
maxima stand where a longer mean would cancel what must be seen: each frame counts alone, or a flash in one frame of two
would halve; and beside the grey mean of a block its colours count by half, or red could turn into an equally bright
green. Sensor noise of sigma 3/255 leaves 0.31/255 in the grey difference of two blocks, a tenth of the threshold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evs.blocks import BlockMeans
from evs.count import cap_cells, exact_share
from evs.selection import Selection, WholeReason, WholeSlot


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRules:
    """Numbers of the rules, as EvsPolicy describes them; `rate` None sets no cap."""

    threshold: float
    refresh: int
    scene_cut: float
    floor: int
    rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gated:
    """What rules 1 to 5 kept. difference: (T, P) float32, D; slot 0 has nothing to differ from and holds 1."""

    keep: npt.NDArray[np.bool_]
    difference: npt.NDArray[np.float32]
    whole: tuple[WholeSlot, ...]


def gate_cells(blocks: BlockMeans, rules: GateRules) -> Selection:
    """Rules 1 to 5, slot by slot, then the cap of rule 6.

    Worked example, one block a cell, threshold 0.1, refresh 4, floor 1, cells shown by their level:

        slot   cells              D                   kept
        0      .0 .0 .0 .0 .0     -                   all     first
        1      .0 .0 .0 .5 .0     0  0  0  .5 0       4th     passes
        2      .0 .0 .0 .5 .0     0  0  0  0  0       1st     the floor, ties in reading order
        3      .9 .9 .9 .9 .0     .9 .9 .9 .4 0       all     cut: 4 of 5 pass
        4      .9 .9 .9 .9 .0     0  0  0  0  0       all     refresh
    """
    gated = run_rules(blocks, rules)
    if rules.rate is None:
        return Selection(keep=gated.keep, method="gate", whole=gated.whole)
    slots, cells = gated.keep.shape
    keep = cap_kept(gated, rules.floor, cap_cells(slots, cells, rules.rate))
    whole = tuple(entry for entry in gated.whole if keep[entry.slot].all())
    return Selection(keep=keep, method="gate", whole=whole)


def run_rules(blocks: BlockMeans, rules: GateRules) -> Gated:
    """Rules 1 to 5: first slot, refreshes, cuts and floors; the last kept copy follows what they keep."""
    slots, _, cells = blocks.means.shape
    keep = np.ones((slots, cells), dtype=np.bool_)
    difference = np.ones((slots, cells), dtype=np.float32)
    whole = [WholeSlot(slot=0, reason="first")]
    last_kept = blocks.means[0].copy()  # (J, P): R
    threshold, cut = np.float32(rules.threshold), exact_share(rules.scene_cut) * cells
    for slot in range(1, slots):
        now = blocks.means[slot]
        difference[slot] = np.abs(now - last_kept).max(0).astype(np.float32) / np.float32(blocks.white)
        passed = difference[slot] > threshold
        reason = find_reason(slot, rules.refresh, is_cut=int(passed.sum()) > cut)
        if reason is not None:
            whole.append(WholeSlot(slot=slot, reason=reason))
        else:
            keep[slot] = passed
            keep[slot, highest(difference[slot], rules.floor)] = True
        np.copyto(last_kept, now, where=keep[slot])
    return Gated(keep=keep, difference=difference, whole=tuple(whole))


def find_reason(slot: int, refresh: int, *, is_cut: bool) -> WholeReason | None:
    if is_cut:
        return "cut"
    return "refresh" if slot % refresh == 0 else None


def cap_kept(gated: Gated, floor: int, cap: int) -> npt.NDArray[np.bool_]:
    """Rule 6: at most `cap` cells of (T, P). Slot 0 and the floor of every later slot count first and always stay; the
    rest go by highest D, ties to the earlier slot, then reading order."""
    protected = np.zeros_like(gated.keep)
    protected[0] = True
    for slot in range(1, len(protected)):
        protected[slot, highest(gated.difference[slot], floor)] = True
    others = np.flatnonzero(gated.keep & ~protected)
    ranked = others[highest(gated.difference.reshape(-1)[others], max(0, cap - int(protected.sum())))]
    protected.reshape(-1)[ranked] = True
    return protected


def highest(scores: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.intp]:
    """Places of the `count` highest scores; among equals the first places."""
    return np.argsort(-scores, kind="stable")[:count]
