"""Pruning again, from the definitions, one cell and one pixel block at a time, in exact or float64 arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

Rect = tuple[int, int, int, int]  # top, bottom, left, right


def rectangles(rows: list[tuple[int, int]], columns: list[tuple[int, int]]) -> list[Rect]:
    return [(*row, *column) for row in rows for column in columns]


def blocks_of(rect: Rect) -> list[Rect]:
    """8 x 8 blocks from the top left; the last of a row or column sits flush with the cell's end."""

    def cuts(start: int, stop: int) -> list[int]:
        found = list(range(start, stop - 7, 8))
        return found if found[-1] + 8 == stop else [*found, stop - 8]

    return [(top, top + 8, left, left + 8) for top in cuts(rect[0], rect[1]) for left in cuts(rect[2], rect[3])]


def cell_difference(now: npt.NDArray[np.uint8], kept: npt.NDArray[np.uint8], rect: Rect) -> Fraction:
    """D of one cell; now and kept (frames, C, H, W)."""
    largest = Fraction(0)
    for frame in range(len(now)):
        for top, bottom, left, right in blocks_of(rect):
            shifts = []
            for channel in range(now.shape[1]):
                a = now[frame, channel, top:bottom, left:right]
                b = kept[frame, channel, top:bottom, left:right]
                shifts.append(Fraction(sum(map(int, a.flat)) - sum(map(int, b.flat)), 64 * 255))
            grey = sum(shifts, Fraction(0)) / len(shifts)
            largest = max(largest, abs(grey), *(abs(shift - grey) / 2 for shift in shifts))
    return largest


def gate_oracle(
    pixels: npt.NDArray[np.uint8],
    rects: list[Rect],
    *,
    frames_per_slot: int,
    threshold: Fraction,
    refresh: int,
    scene_cut: Fraction,
    floor: int,
    rate: Fraction | None,
) -> tuple[list[list[bool]], list[list[Fraction]]]:
    """Rules 1 to 6 as they are written: (keep, D)."""
    clip = pixels.reshape(-1, frames_per_slot, *pixels.shape[1:])
    last = [clip[0]] * len(rects)
    keep, scores = [[True] * len(rects)], [[Fraction(1)] * len(rects)]
    for slot in range(1, len(clip)):
        score = [cell_difference(clip[slot], last[p], rects[p]) for p in range(len(rects))]
        passed = [s > threshold for s in score]
        whole = slot % refresh == 0 or Fraction(sum(passed), len(rects)) > scene_cut
        best = sorted(range(len(rects)), key=lambda p: (-score[p], p))[:floor]
        kept = [whole or passed[p] or p in best for p in range(len(rects))]
        last = [clip[slot] if kept[p] else last[p] for p in range(len(rects))]
        keep.append(kept)
        scores.append(score)
    if rate is not None:
        keep = cap_oracle(keep, scores, floor, math.floor(len(clip) * len(rects) * (1 - rate)))
    return keep, scores


def cap_oracle(keep: list[list[bool]], scores: list[list[Fraction]], floor: int, cap: int) -> list[list[bool]]:
    cells = range(len(keep[0]))
    stays = {(0, p) for p in cells}
    for slot in range(1, len(keep)):
        stays |= {(slot, p) for p in sorted(cells, key=lambda p: (-scores[slot][p], p))[:floor]}
    others = [(t, p) for t in range(len(keep)) for p in cells if keep[t][p] and (t, p) not in stays]
    others.sort(key=lambda place: (-scores[place[0]][place[1]], place))
    stays |= set(others[: max(0, cap - len(stays))])
    return [[(t, p) in stays for p in cells] for t in range(len(keep))]


def evs_oracle(embeddings: npt.NDArray[np.float64], rate: Fraction) -> list[list[bool]]:
    """Slot 0 and the largest 1 - cos until max(P, floor(T * P * (1 - rate))) are kept."""
    slots, cells, _ = embeddings.shape
    scored = []
    for slot in range(1, slots):
        for p in range(cells):
            a, b = embeddings[slot, p].tolist(), embeddings[slot - 1, p].tolist()
            aa, bb, ab = (math.fsum(x * y for x, y in zip(u, v, strict=True)) for u, v in ((a, a), (b, b), (a, b)))
            flat = (0.0 if aa == bb else 1.0) if 0 in (aa, bb) else 1 - ab / math.sqrt(aa * bb)
            scored.append((-flat, slot, p))
    count = max(cells, math.floor(slots * cells * (1 - rate)))
    kept = {(slot, p) for _, slot, p in sorted(scored)[: count - cells]}
    return [[t == 0 or (t, p) in kept for p in range(cells)] for t in range(slots)]
