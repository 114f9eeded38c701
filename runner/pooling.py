"""From the hidden states of a prompt to one vector. Owns pooling, shortening and normalisation; knows no pictures, no
prompts and no queues.

A pooled sequence is one that ends with its prefill: what is read are the hidden states of its own rows, after the
decoder's final norm, and no token is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

Pooling = Literal["last", "mean"]


def _ignore() -> None:
    """Nobody waits to be told."""


@dataclass(slots=True, kw_only=True, eq=False)
class Pooled:
    """What becomes of a pooled sequence: its vector's first `dimensions` numbers (None: all), of length 1 when
    `normalize`. `finished` is called once, on the model's thread, however the sequence ends.

    hidden_sum: (D,) float64 over the rows computed so far, where the mean is wanted.
    """

    dimensions: int | None = None
    normalize: bool = True
    finished: Callable[[], None] = _ignore
    hidden_sum: np.ndarray | None = None


def pool_rows(goal: Pooled, hidden: torch.Tensor, *, start: int, length: int, pooling: Pooling) -> np.ndarray | None:
    """A sequence's vector, (dimensions,) float32, or None while rows of it are still to come.

    hidden: (n, D), the states of its rows [start, start + n) of `length`. The mean is over all rows of the prompt; a
    sequence that is computed again from its first row starts its sum anew.

    Worked example, mean of three rows: (2, 0) and (0, 0) in one chunk, (1, 3) in the next: (1, 1), of length 1
    (0.71, 0.71).
    """
    if pooling == "mean":
        total = hidden.double().sum(0).cpu().numpy()
        goal.hidden_sum = total if start == 0 or goal.hidden_sum is None else goal.hidden_sum + total
    if start + len(hidden) < length:
        return None
    if pooling == "mean":
        assert goal.hidden_sum is not None
        return finish_vector(goal.hidden_sum / length, goal)
    return finish_vector(hidden[-1].double().cpu().numpy(), goal)


def finish_vector(vector: np.ndarray, goal: Pooled) -> np.ndarray:
    """Cut, then normalise: a shortened vector has length 1, too. A vector of zeros stays one.

    Worked example: (3, 4, 12) cut to 2 is (3, 4), of length 1 (0.6, 0.8).
    """
    cut = vector[: goal.dimensions].astype(np.float64)
    length = float(np.sqrt((cut * cut).sum()))
    if goal.normalize and length > 0:
        cut = cut / length
    return cut.astype(np.float32)


def vector_bytes(vector: np.ndarray) -> bytes:
    """Little-endian float32, as it crosses the wire and as OpenAI's base64 form holds it."""
    return vector.astype("<f4").tobytes()


def check_dimensions(wanted: int | None, width: int) -> str | None:
    """What is wrong with a wanted number of dimensions; None when nothing is."""
    if wanted is None or 1 <= wanted <= width:
        return None
    return f"dimensions must be between 1 and {width}, this model's own number, got {wanted}"
