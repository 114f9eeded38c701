"""Owns what training wants: the next token of answers, what each cell shows, and one space for clips and texts. Knows
nothing of optimisers or schedules.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from demo.batches import Batch
from demo.draws import Sample
from demo.labels import EVENTS, NO_COLOR, NO_EVENT, NO_SHAPE, POINTS, SIDES, UNCLEAR
from demo.net import Reader
from demo.prompts import IGNORED, Prompts
from demo.pruning import Keep
from demo.questions import describe, search_phrase
from demo.tokens import Words

TEMPERATURE = 0.07
NOTHING_WEIGHT = 0.15
ROWS_BUCKET = 512
MAX_SLOTS = 16
WIDTH = 256
CALLED_BY_THE_PAST = [EVENTS.index("disappear"), EVENTS.index("turn")]
FORMER_WEIGHT = 2.0
"""The colour that a cell had before its event is a term of its own: such cells are few, and weighed like all others
they are not learnt at all, while "what disappears" and "what changes" need just that."""


class CellHeads(nn.Module):
    """Linear readings of a cell, used in training only: from its embedding colour, shape, outline and third; from the
    decoder's state its event, its slot, and the name of what does it, all that an answer needs in one place."""

    def __init__(self) -> None:
        super().__init__()
        self.color = nn.Linear(WIDTH, NO_COLOR + 1)
        self.shape = nn.Linear(WIDTH, NO_SHAPE + 1)
        self.third = nn.Linear(WIDTH, 9)
        self.outline = nn.Linear(WIDTH, POINTS * POINTS)
        self.event = nn.Linear(WIDTH, len(EVENTS))
        self.named_color = nn.Linear(WIDTH, NO_COLOR + 1)
        self.named_shape = nn.Linear(WIDTH, NO_SHAPE + 1)
        self.slot = nn.Linear(WIDTH, MAX_SLOTS)
        self.past = nn.Linear(WIDTH, len(SIDES))


def answer_loss(reader: Reader, states: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Mean cross entropy of the answers' tokens, and the share that is right; states (B, L, D), labels (B, L)."""
    target = labels[:, 1:].reshape(-1)
    places = (target != IGNORED).nonzero()[:, 0]
    count = len(places)
    places = F.pad(places, (0, -count % ROWS_BUCKET))
    target = target[places]
    target[count:] = IGNORED
    logits = reader.score(states[:, :-1].reshape(-1, states.shape[-1])[places])
    right = (logits.argmax(-1) == target)[:count].float().mean()
    return F.cross_entropy(logits, target, ignore_index=IGNORED), float(right)


def cell_loss(heads: CellHeads, batch: Batch, seen: torch.Tensor) -> torch.Tensor:
    """What the tower's rows and the decoder's states at kept cells say of them; seen (N, D): those states, in order."""
    read = batch.keep.reshape(-1)
    rows = np.ones_like(read) if batch.has_all_rows else read
    cells = batch.encoded.cells.float()

    def target(name: str, chosen: Keep) -> torch.Tensor:
        every = np.stack([getattr(sample.labels, name) for sample in batch.samples])
        return torch.as_tensor(every.reshape(read.size, *every.shape[3:])[chosen])

    color = _weighted(heads.color(cells), target("color", rows), NO_COLOR)
    shape = _weighted(heads.shape(cells), target("shape", rows), NO_SHAPE)
    third = _plain(heads.third(cells), target("third", rows))
    outline = F.binary_cross_entropy_with_logits(heads.outline(cells), target("outline", rows).float() / 255)
    seen = F.layer_norm(seen.float(), (WIDTH,))
    events = target("event", read)
    event = _weighted(heads.event(seen), events, NO_EVENT)
    names, forms = target("named_color", read), target("named_shape", read)
    colors = heads.named_color(seen)
    named = _weighted(colors, names, NO_COLOR) + _weighted(heads.named_shape(seen), forms, NO_SHAPE)
    former = _plain(colors, names.where(torch.isin(events, torch.tensor(CALLED_BY_THE_PAST)), UNCLEAR))
    slot = _plain(heads.slot(seen), target("slot", read))
    past = _plain(heads.past(seen), target("past", read))
    return color + 2 * shape + 4 * outline + third + event + named + FORMER_WEIGHT * former + slot + past


def _weighted(logits: torch.Tensor, target: torch.Tensor, nothing: int) -> torch.Tensor:
    """Cross entropy in which empty ground, most of any picture, weighs little."""
    weight = torch.ones(logits.shape[-1])
    weight[nothing] = NOTHING_WEIGHT
    return _plain(logits, target, weight)


def _plain(logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
    if not bool((target != UNCLEAR).any()):
        return logits.sum() * 0
    return F.cross_entropy(logits, target, weight=weight, ignore_index=UNCLEAR)


def search_loss(
    rng: random.Random, reader: Reader, words: Words, samples: Sequence[Sample], states: torch.Tensor, prompts: Prompts
) -> torch.Tensor:
    """InfoNCE between clips and texts, half of it on vectors centred in the batch, without which it collapses until the
    model is grounded. A text is a whole description or one thing's phrase; clips that it also fits do not count."""
    vectors = F.normalize(states[torch.arange(len(samples)), prompts.embed].float(), dim=-1)
    texts, fits = [], []
    for sample in samples:
        if rng.random() < 0.5:
            text = describe(sample.scene)
            fits.append([describe(other.scene) == text for other in samples])
        else:
            text = search_phrase(rng.choice(sample.scene.things), sample.scene)
            fits.append([text in _phrases(other) for other in samples])
        texts.append(text)
    also = torch.tensor(fits) & ~torch.eye(len(samples), dtype=torch.bool)
    spoken = reader.read_texts(words, texts)
    centred = _contrast(_centre(spoken), _centre(vectors), also)
    return 0.5 * centred + 0.5 * _contrast(spoken, vectors, also)


def _phrases(sample: Sample) -> set[str]:
    return {search_phrase(thing, sample.scene) for thing in sample.scene.things}


def _centre(vectors: torch.Tensor) -> torch.Tensor:
    return F.normalize(vectors - vectors.mean(0, keepdim=True), dim=-1)


def _contrast(texts: torch.Tensor, clips: torch.Tensor, also: torch.Tensor) -> torch.Tensor:
    scores = (texts @ clips.T / TEMPERATURE).masked_fill(also, -1e4)
    own = torch.arange(len(texts))
    return (F.cross_entropy(scores, own) + F.cross_entropy(scores.T, own)) / 2
