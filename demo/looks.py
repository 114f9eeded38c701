"""Owns where an answer is to be found, as targets for two heads of the decoder: at the cells that show the thing that
it speaks of, or its event, or how it passes another, and at the words that say when. Knows nothing of models.

Answers alone taught these heads hardly anything in 40,000 clips: a head that looks at no event in particular gains
nothing by looking a little more at the right one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from demo.batches import Batch
from demo.labels import EVENTS, UNCLEAR, CellLabels
from demo.prompts import find_answers
from demo.questions import Mention, Question
from demo.shapes import COLORS, SHAPES
from demo.tokens import Words, slot_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Clip `clip`'s row `row` should look at its rows `at`. pointer: by which head of demo.net.POINTERS."""

    pointer: int
    clip: int
    row: int
    at: tuple[int, ...]


def look_loss(scores: torch.Tensor, mask: torch.Tensor, looks: Sequence[Look]) -> torch.Tensor:
    """Mean of -log(share of attention that goes where it should); scores (2, B, L, L), mask (B, 1, L, L) bool."""
    if not looks:
        return scores.sum() * 0
    rows = torch.tensor([(look.pointer, look.clip, look.row) for look in looks]).unbind(1)
    wanted = torch.zeros(len(looks), scores.shape[-1], dtype=torch.bool)
    for number, look in enumerate(looks):
        wanted[number, list(look.at)] = True
    chosen = scores[rows].masked_fill(~mask[rows[1], 0, rows[2]], -torch.inf)
    return (chosen.logsumexp(-1) - chosen.masked_fill(~wanted, -torch.inf).logsumexp(-1)).mean()


def find_looks(words: Words, batch: Batch) -> list[Look]:
    """For every row that must say the next token about a thing."""
    return list(_find_looks(words, batch))


def _find_looks(words: Words, batch: Batch) -> Iterator[Look]:
    prompts = batch.prompts
    ids, cells, labels = (told.cpu().numpy() for told in (prompts.ids, prompts.cells, prompts.labels))
    for clip, sample in enumerate(batch.samples):
        numbers = np.full(batch.keep[clip].shape, -1)
        numbers[batch.keep[clip]] = np.flatnonzero(cells[clip])
        heads = np.flatnonzero(ids[clip] == words.vision_start)
        for question, rows in zip(sample.questions, find_answers(labels[clip]), strict=True):
            for token, mention, place in _find_mentions(words, question):
                seen = numbers[_shows(sample.labels, mention)]
                if (seen >= 0).any():
                    yield Look(pointer=0, clip=clip, row=rows[token] - 1, at=tuple(seen[seen >= 0].tolist()))
                if mention.what == "time":
                    slot = mention.thing.slot
                    first = int(heads[slot]) - len(words.time(slot, sample.scene.start))
                    at = first + _find_digit(words, slot_text(slot, sample.scene.start), place)
                    yield Look(pointer=1, clip=clip, row=rows[token] - 1, at=(at,))


def _shows(labels: CellLabels, mention: Mention) -> npt.NDArray[np.bool_]:
    """(T, P): the cells where a mention is to be seen: a thing in all slots, an event in its own, also for its time,
    and a passing wherever two overlap."""
    thing = mention.thing
    if mention.what == "passing":
        return labels.past != UNCLEAR
    shows = (labels.named_color == list(COLORS).index(thing.color)) & (labels.named_shape == SHAPES.index(thing.shape))
    if mention.what != "thing":
        shows &= labels.event == EVENTS.index(thing.act)  # which stands in the slot of the event alone
    return shows


def _find_mentions(words: Words, question: Question) -> Iterator[tuple[int, Mention, int]]:
    """(token of the answer, what it is part of, its first character there) for all tokens of its mentions."""
    spans = words.tokenizer.encode(question.answer).offsets
    for mention in question.mentions:
        for token, (first, end) in enumerate(spans):
            if first < mention.end and end > mention.first:
                yield token, mention, max(0, first - mention.first)


def _find_digit(words: Words, text: str, place: int) -> int:
    """Which token of a slot's text shows the character `place` of its time, which follows a "<"."""
    spans = words.tokenizer.encode(text).offsets
    return next(token for token, (first, end) in enumerate(spans) if first <= place + 1 < end)
