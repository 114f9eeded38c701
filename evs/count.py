"""How many cells a rate keeps. Owns the only arithmetic on rates, exact; knows nothing of which cells these are."""

from __future__ import annotations

from fractions import Fraction


def exact_share(share: float) -> Fraction:
    """The share as its writer meant it, from the shortest decimal that reads back as this float: 0.9 is 9/10."""
    return Fraction(str(share))


def check_rate(rate: float) -> None:
    """Raise ValueError unless 0 <= rate < 1 (NaN is neither)."""
    if not 0 <= rate < 1:
        raise ValueError(f"rate is the share of cells to drop and must be at least 0 and below 1, got {rate}")


def cap_cells(slots: int, cells_per_slot: int, rate: float) -> int:
    """floor(T * P * (1 - rate)), exactly: 100 for T * P = 1000 and rate 0.9, where floats give 99."""
    check_rate(rate)
    return int(slots * cells_per_slot * (1 - exact_share(rate)))


def count_kept(slots: int, cells_per_slot: int, rate: float) -> int:
    """K = max(P, floor(T * P * (1 - rate))): what `evs`, `uniform` and `random` keep.

    Worked examples, P = 64: rate 0.75 keeps 64, 64, 64, 128 of T = 1, 2, 4, 8 slots; rate 0.7 keeps 192 of T = 10.
    """
    if slots < 1 or cells_per_slot < 1:
        raise ValueError(f"a clip has at least one slot of one cell, got {slots} slots of {cells_per_slot} cells")
    return max(cells_per_slot, cap_cells(slots, cells_per_slot, rate))
