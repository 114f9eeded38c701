"""Likeliest tokens on their way from the device to the host. Owns the one copy and the wait for it; knows no sequences.

Rows that are drawn by anything else than their largest logit are read by runner/sampler.py, on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from runner.sampler import Sampled, SampleRow
from runner.slots import make_event


def is_quiet(rows: Sequence[SampleRow]) -> bool:
    """Whether all that is wanted of these rows is the token of the largest logit among the same ones."""
    same = len({row.drawing.suppressed for row in rows}) == 1
    return same and all(row.is_plain and row.drawing.top_logprobs is None for row in rows)


class TokensOut:
    """Asks for the largest of each row of logits (B, V), leaving out `suppressed`; nothing waits before `wait`."""

    def __init__(self, logits: torch.Tensor, suppressed: tuple[int, ...]) -> None:
        if suppressed:
            logits = logits.index_fill(1, _on_device(suppressed, logits.device), -torch.inf)
        best = logits.argmax(-1)
        self._event: Any = None
        if logits.device.type != "cuda":
            self._host = best
            return
        self._host = torch.empty(best.shape, dtype=best.dtype, pin_memory=True)
        self._host.copy_(best, non_blocking=True)
        self._event = make_event()
        self._event.record()

    def wait(self) -> list[int]:
        if self._event is not None:
            self._event.synchronize()
        tokens: list[int] = self._host.tolist()
        return tokens


def accept(best: Sequence[int], rows: Sequence[SampleRow]) -> list[tuple[Sampled, ...]]:
    """Of the likeliest tokens of each row and of its draft's rows, those up to the first that was not guessed or that
    ends the answer.

    Worked example: a row with draft (7, 7), then one with none, and best tokens 7, 3, 9, 5: (7, 3), (5,).
    """
    runs: list[tuple[Sampled, ...]] = []
    first = 0
    for row in rows:
        ends = row.drawing.eos_token_ids | row.drawing.stop_token_ids
        tokens = best[first : first + 1 + len(row.draft)]
        right = (
            place for place, token in enumerate(tokens) if token in ends or row.draft[place : place + 1] != (token,)
        )
        runs.append(tuple(Sampled(token_id=token, logprob=None) for token in tokens[: next(right) + 1]))
        first += len(tokens)
    return runs


@lru_cache(maxsize=8)
def _on_device(ids: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return torch.tensor(ids, dtype=torch.int64, device=device)
