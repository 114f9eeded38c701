"""Owns the way from drawn clips to what the decoder reads in training: encode, prune as served, lay out. Knows nothing
of losses."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from demo.draws import Sample
from demo.net import Encoded, Tower, find_owners
from demo.prompts import Prompts, make_prompts
from demo.pruning import REUSE_SHARE, Keep, Regime, draw_policy, draw_regime, keep_by_turn, keep_cells
from demo.tokens import Words

CHAINED_SHARE = 0.08


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Clips of one size, encoded and laid out. keep (B, T, P): what the decoder reads. has_all_rows: `encoded` has a
    row for every cell; otherwise for those of `keep`."""

    samples: Sequence[Sample]
    encoded: Encoded
    has_all_rows: bool
    keep: Keep
    prompts: Prompts

    def read_rows(self) -> Encoded:
        """The rows of kept cells, in the order of the prompts' cells."""
        if not self.has_all_rows or self.keep.all():
            return self.encoded
        return self.encoded.pick(torch.as_tensor(np.flatnonzero(self.keep)))


def prepare_batch(rng: random.Random, tower: Tower, words: Words, samples: Sequence[Sample]) -> Batch:
    """A regime drawn for the batch, a policy for each clip."""
    has_one_slot = samples[0].scene.slots == 1
    regime: Regime = "none" if has_one_slot else draw_regime(rng)
    uses_reuse = regime in ("gate", "random") and rng.random() < REUSE_SHARE
    is_chained = rng.random() < CHAINED_SHARE
    return prune_and_encode(rng, tower, words, samples, regime, uses_reuse=uses_reuse, is_chained=is_chained)


def prune_and_encode(
    rng: random.Random,
    tower: Tower,
    words: Words,
    samples: Sequence[Sample],
    regime: Regime,
    *,
    uses_reuse: bool,
    is_chained: bool = False,
) -> Batch:
    """With `evs` the encoder comes first, because it chooses; with `reuse` the cells do, because only they are
    encoded."""
    frames = np.stack([sample.frames for sample in samples])
    policies = [draw_policy(rng, regime) for _ in samples]
    size = (frames.shape[2], frames.shape[3])
    if regime == "evs":
        encoded = tower.encode(frames, None)
        outputs = (
            encoded.cells.detach()
            .float()
            .cpu()
            .reshape(len(samples), samples[0].scene.slots, -1, encoded.cells.shape[-1])
        )
        keeps = [keep_by_turn(output, policy) for output, policy in zip(outputs, policies, strict=True)]
    else:
        keeps = [keep_cells(sample.frames, policy) for sample, policy in zip(samples, policies, strict=True)]
        encoded = tower.encode(frames, find_owners(keeps) if uses_reuse else None)
    prompts = make_prompts(
        words,
        [sample.questions for sample in samples],
        keeps,
        size,
        starts=[sample.scene.start for sample in samples],
        is_image=samples[0].is_image,
        is_chained=is_chained,
    )
    return Batch(samples=samples, encoded=encoded, has_all_rows=not uses_reuse, keep=np.stack(keeps), prompts=prompts)
