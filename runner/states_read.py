"""Which rows' hidden states a step is run for. Owns their numbers; knows no model and reads nothing.

A decoder's last layer needs its other rows for their keys and values alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runner.plan import RowsWork
from runner.pooling import Pooled, Pooling


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StatesRead:
    """counts: for each work, how many of its last rows are read. rows: (n,) int64, these rows' numbers in the step, in
    its order; None where they are all. samples: (m,) int64, the places among those n from which tokens are drawn."""

    counts: tuple[int, ...]
    rows: np.ndarray | None
    samples: np.ndarray


def states_read(works: Sequence[RowsWork], pooling: Pooling) -> StatesRead:
    """pooling: how vectors are made of the states of pooled sequences.

    Worked example, works of 4, 1 and 3 rows, the first a chunk that ends before its prompt does, the others drawing a
    token each: counts (0, 1, 1), rows [4, 7], samples [0, 1].
    """
    lengths = np.array([work.stop - work.start for work in works], dtype=np.int64)
    counts = np.array([_count(work, pooling) for work in works], dtype=np.int64)
    is_read = np.concatenate([np.arange(length, 0, -1) <= n for length, n in zip(lengths, counts, strict=True)])
    draws = np.repeat([work.samples for work in works], counts)
    return StatesRead(
        counts=tuple(counts.tolist()),
        rows=None if is_read.all() else np.flatnonzero(is_read),
        samples=np.flatnonzero(draws),
    )


def _count(work: RowsWork, pooling: Pooling) -> int:
    if not isinstance(work.sequence.goal, Pooled):
        return work.num_samples
    return work.stop - work.start if pooling == "mean" else int(work.stop == len(work.sequence))
