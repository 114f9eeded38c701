"""Method `evs`: keep the cells whose encoder output turned most since the slot before. Owns the score and the picks;
knows nothing of the encoder.

The published rule (arXiv 2510.14624): score[t, p] = 1 - cos(E[t, p], E[t-1, p]); slot 0 whole; then the highest scores
until count_kept cells are kept, ties to the earlier slot, then reading order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from evs.count import count_kept
from evs.selection import Selection, WholeSlot

NO_SCORE = 2.0
"""The largest score there is: what a pair gets whose cosine is no number because an output was NaN or infinite."""


def score_turns(embeddings: torch.Tensor) -> npt.NDArray[np.float64]:
    """(T - 1, P) scores of slots 1.. from embeddings (T, P, D) of any float type.

    1 - a.b / sqrt(a.a * b.b): the three sums run in float64, in the same order, and the root of a square is exact, so
    that equal rows score exactly 0. Two zero rows are equal; a zero row against another is a right angle, score 1.
    """
    slots, cells, _ = embeddings.shape
    squares = torch.empty(slots, cells, dtype=torch.float64)
    products = torch.empty(slots - 1, cells, dtype=torch.float64)
    before = embeddings[0].to(torch.float64)  # (P, D); slot by slot, so that a clip is never held whole in float64
    squares[0] = (before * before).sum(-1)
    for slot in range(1, slots):
        now = embeddings[slot].to(torch.float64)
        squares[slot], products[slot - 1] = (now * now).sum(-1), (now * before).sum(-1)
        before = now
    return _one_minus_cosine(products.numpy(), squares[1:].numpy(), squares[:-1].numpy())


def _one_minus_cosine(
    product: npt.NDArray[np.float64], square: npt.NDArray[np.float64], other: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """In numpy, whose sqrt rounds correctly: torch's own, on CPUs with MKL, is off by one bit for one in a hundred."""
    with np.errstate(all="ignore"):
        score = 1 - product / np.sqrt(square * other)
    score = np.where((square == 0) | (other == 0), (square != other).astype(np.float64), score)
    turned: npt.NDArray[np.float64] = np.where(np.isnan(score), NO_SCORE, score)
    return turned


def keep_turned(embeddings: torch.Tensor, rate: float) -> Selection:
    """The Selection of method `evs`; embeddings (T, P, D).

    Worked example, P = 2, D = 2, rate 0.5, T = 2: rows (1, 0), (0, 1) then (1, 0), (1, 1) score 0 and 1 - 1/sqrt(2);
    K = max(2, floor(4 * 0.5)) = 2, so slot 0 alone stays. At rate 0.25, K = 3 adds the second cell of slot 1.
    """
    if embeddings.ndim != 3 or 0 in embeddings.shape or not embeddings.is_floating_point():
        raise ValueError(f"embeddings must be (T, P, D) floats, got {tuple(embeddings.shape)} {embeddings.dtype}")
    slots, cells, _ = embeddings.shape
    scores = score_turns(embeddings).reshape(-1)
    keep = np.zeros(slots * cells, dtype=np.bool_)
    keep[:cells] = True
    keep[cells + np.argsort(-scores, kind="stable")[: count_kept(slots, cells, rate) - cells]] = True
    return Selection(keep=keep.reshape(slots, cells), method="evs", whole=(WholeSlot(slot=0, reason="first"),))
