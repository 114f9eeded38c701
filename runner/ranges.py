"""Ranges of a prompt whose rows see each other, also forwards. Owns where they lie, in the dense prompt and after
pruning, and where a prompt may be cut; knows no model and no queue."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby

import numpy as np

from attention.protocol import Range
from runner.families.base import DenseSpan, PrefixRule


def prefix_ranges(rule: PrefixRule, length: int, spans: Sequence[DenseSpan]) -> tuple[Range, ...]:
    """Half-open ranges of a dense prompt of `length` rows, rising and apart.

    Worked example, 10 rows, a clip of two frames at rows 2-4 and 6-8: "run" (2, 4), (6, 8); "item" (2, 8); "prompt"
    (0, 10); "none" nothing.
    """
    match rule:
        case "none":
            return ()
        case "prompt":
            return ((0, length),)
        case "run":
            return tuple((span.start, span.start + len(span.cells)) for span in spans)
        case "item":
            grouped = (list(group) for _, group in groupby(spans, key=lambda span: span.item))
            return tuple((group[0].start, group[-1].start + len(group[-1].cells)) for group in grouped)


def prune_ranges(ranges: Sequence[Range], keep: np.ndarray) -> tuple[Range, ...]:
    """The same ranges where only the kept rows are left; those of one row or none are no ranges any more.

    keep: (L,) bool. Worked example: ranges (1, 4), (5, 7) and keep 1 1 0 1 1 0 1 1: (1, 3), for the second has one row.
    """
    before = np.concatenate(([0], np.cumsum(keep)))
    pruned = [(int(before[start]), int(before[stop])) for start, stop in ranges]
    return tuple((start, stop) for start, stop in pruned if stop - start > 1)


def longest_range(ranges: Sequence[Range]) -> int:
    """Rows of the longest; 0 where there is none."""
    return max((stop - start for start, stop in ranges), default=0)


def cut_before(ranges: Sequence[Range], stop: int) -> int:
    """The last row at or before `stop` at which a prompt may be cut: never inside a range.

    Worked example, ranges (2, 5), (5, 7): 1 stays 1; 2 stays 2; 4 becomes 2; 6 becomes 5; 9 stays 9.
    """
    index = bisect_right(ranges, stop, key=lambda found: found[0]) - 1
    if index < 0:
        return stop
    start, end = ranges[index]
    return start if start < stop < end else stop


def range_at(ranges: Sequence[Range], row: int) -> Range | None:
    """The range that begins at `row`, if one does."""
    index = bisect_right(ranges, row, key=lambda found: found[0]) - 1
    return ranges[index] if index >= 0 and ranges[index][0] == row else None


def ranges_within(ranges: Sequence[Range], start: int, stop: int) -> tuple[Range, ...]:
    """Those that lie in rows [start, stop), which cut none of them."""
    if not ranges:
        return ()
    return tuple(found for found in ranges if start <= found[0] and found[1] <= stop)
