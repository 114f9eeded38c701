"""Owns a quick look at a model in training: answers by kind on a few clips of a fixed seed, teacher-forced. The score
that counts is demo/evaluate.py's, through the engine. Knows nothing of optimisers.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator

import torch

from demo.batches import Batch, prune_and_encode
from demo.draws import draw_samples
from demo.net import Reader, Tower
from demo.prompts import find_answers
from demo.pruning import Regime
from demo.tokens import Words

SEED = 990_099
BATCH = 24
Counts = dict[str, tuple[int, int]]


@torch.no_grad()
def score_quickly(tower: Tower, reader: Reader, words: Words, *, clips: int) -> Iterator[tuple[str, Counts]]:
    """(regime, right and asked by kind) without pruning and with the gate and `reuse`."""
    regimes: tuple[Regime, ...] = ("none", "gate")
    for regime in regimes:
        rng, counts = random.Random(SEED), defaultdict[str, tuple[int, int]](lambda: (0, 0))
        for _ in range(clips // BATCH):
            samples = draw_samples(rng, "all", BATCH)
            with torch.autocast(torch.get_default_device().type, torch.bfloat16):
                batch = prune_and_encode(random.Random(0), tower, words, samples, regime, uses_reuse=regime == "gate")
                states = reader.read(batch.prompts, batch.read_rows())
            for kind, is_right in _mark(batch, reader.score(states.last).argmax(-1)):
                right, asked = counts[kind]
                counts[kind] = right + is_right, asked + 1
        yield regime, dict(counts)


def _mark(batch: Batch, said: torch.Tensor) -> Iterator[tuple[str, bool]]:
    """(kind, whole answer right) of every question; said (B, L)."""
    told = batch.prompts.labels
    good = (said[:, :-1] == told[:, 1:]).cpu().numpy()
    for sample, marks, labels in zip(batch.samples, good, told.cpu().numpy(), strict=True):
        for question, rows in zip(sample.questions, find_answers(labels), strict=True):
            yield question.kind, all(marks[row - 1] for row in rows)
