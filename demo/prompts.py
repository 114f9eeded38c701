"""Owns the rows of a training step: tokens, positions, who sees whom. Knows nothing of weights.

Every question sees the clip and itself only, and its positions restart after the clip: seven questions share one
encoding, and each reads exactly what it would read alone. In chained prompts each question sees those before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from demo.labels import CELL
from demo.pruning import Keep
from demo.questions import Question
from demo.tokens import Words

CLIP, EMBED, PAD = 0, 1000, -1
"""Segments: the clip, which all see; the empty question of the clip's vector; padding. Questions count from 1."""
IGNORED = -100
BUCKET = 32
"""Lengths are rounded up to this: oneDNN compiles its kernels for each new shape."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One clip with its questions, flat: ids, labels and segments (L,), positions (L, 3). embed: the vector's row."""

    ids: list[int]
    labels: list[int]
    positions: list[tuple[int, int, int]]
    segments: list[int]
    embed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prompts:
    """ids, labels (B, L) int64; positions (3, B, L) int64; mask (B, 1, L, L) bool; cells (B, L) bool: rows of kept
    cells; embed (B,) int64: the row of each clip's vector."""

    ids: torch.Tensor
    labels: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor
    cells: torch.Tensor
    embed: torch.Tensor


def lay_out_clip(words: Words, keep: Keep, grid: tuple[int, int], *, is_image: bool, start: int = 0) -> Row:
    """The clip alone: kept cells at the positions they have in the whole clip. The next position is the last + 1."""
    ids, positions = list(words.user), [(place,) * 3 for place in range(len(words.user))]
    cursor = len(ids)
    pad = words.image_pad if is_image else words.video_pad
    for slot, kept in enumerate(keep):
        head = (*(() if is_image else words.time(slot, start)), words.vision_start)
        ids += head
        positions += [(cursor + place,) * 3 for place in range(len(head))]
        cursor += len(head)
        for cell in np.flatnonzero(kept).tolist():
            ids.append(pad)
            positions.append((cursor, cursor + cell // grid[1], cursor + cell % grid[1]))
        cursor += max(grid)
        ids.append(words.vision_end)
        positions.append((cursor,) * 3)
        cursor += 1
    return Row(ids=ids, labels=[IGNORED] * len(ids), positions=positions, segments=[CLIP] * len(ids))


def add_questions(words: Words, row: Row, questions: Sequence[Question], *, is_chained: bool) -> Row:
    """All questions after the clip, and before them an empty one, whose last row is the clip's vector: so does the
    server pool."""
    start = row.positions[-1][0] + 1
    ids, labels, positions = list(row.ids), list(row.labels), list(row.positions)
    segments = list(row.segments)
    ids += words.assistant
    labels += [IGNORED] * len(words.assistant)
    positions += [(start + place,) * 3 for place in range(len(words.assistant))]
    segments += [EMBED] * len(words.assistant)
    embed = len(ids) - 1
    cursor = start
    for number, question in enumerate(questions, start=1):
        opening = words.user if is_chained and number > 1 else ()
        answer = (*words.of(question.answer), words.end)
        asked = (*opening, *words.of(question.text), *words.assistant)
        closing = words.of("\n") if is_chained else ()
        cursor = cursor if is_chained else start
        ids += (*asked, *answer, *closing)
        labels += (*(IGNORED for _ in asked), *answer, *(IGNORED for _ in closing))
        length = len(asked) + len(answer) + len(closing)
        positions += [(cursor + place,) * 3 for place in range(length)]
        segments += [1 if is_chained else number] * length
        cursor += length
    return Row(ids=ids, labels=labels, positions=positions, segments=segments, embed=embed)


def make_prompts(
    words: Words,
    questions: Sequence[Sequence[Question]],
    keeps: Sequence[Keep],
    size: tuple[int, int],
    *,
    starts: Sequence[int] | None = None,
    is_image: bool = False,
    is_chained: bool = False,
) -> Prompts:
    """One row a clip, padded; size (H, W) in pixels. starts: the clips' first seconds, all 0 where None."""
    grid = (size[0] // CELL, size[1] // CELL)
    clips = [
        lay_out_clip(words, keep, grid, is_image=is_image, start=start)
        for keep, start in zip(keeps, starts or [0] * len(keeps), strict=True)
    ]
    rows = [
        add_questions(words, row, asked, is_chained=is_chained) for row, asked in zip(clips, questions, strict=True)
    ]
    length = -(-max(len(row.ids) for row in rows) // BUCKET) * BUCKET
    ids = _pad([row.ids for row in rows], length, words.end_of_text)
    segments = torch.as_tensor(_pad([row.segments for row in rows], length, PAD))
    positions = np.zeros((3, len(rows), length), dtype=np.int64)
    for number, row in enumerate(rows):
        positions[:, number, : len(row.ids)] = np.array(row.positions).T
    pads = (ids == words.video_pad) | (ids == words.image_pad)
    return Prompts(
        ids=torch.as_tensor(ids),
        labels=torch.as_tensor(_pad([row.labels for row in rows], length, IGNORED)),
        positions=torch.as_tensor(positions),
        mask=see(segments)[:, None],
        cells=torch.as_tensor(pads),
        embed=torch.tensor([row.embed for row in rows]),
    )


def find_answers(labels: npt.NDArray[np.int64]) -> list[list[int]]:
    """The rows of each answer's tokens, in the order of the questions; labels (L,) of one clip's prompts.

    Worked example: labels [-100, 5, 2, -100, 7, 2] give [[1, 2], [4, 5]].
    """
    told = labels != IGNORED
    starts = np.flatnonzero(told & ~np.concatenate([[False], told[:-1]]))
    return [list(range(start, start + int(np.argmin(np.append(told[start:], False))))) for start in starts.tolist()]


def see(segments: torch.Tensor) -> torch.Tensor:
    """(B, L, L) bool: row i sees row j. segments (B, L).

    Worked example: segments [0, 0, 1000, 1, 2, -1] let the rows see

        1 . . . . .      the clip sees what came before
        1 1 . . . .
        1 1 1 . . .      its vector the clip
        1 1 . 1 . .      a question the clip and itself
        1 1 . . 1 .
        1 1 . . . 1      padding itself, so that no row is empty; nobody sees it
    """
    length = segments.shape[1]
    past = torch.ones(length, length, dtype=torch.bool).tril()
    asked, seen = segments[:, :, None], segments[:, None, :]
    allowed = past & ((seen == CLIP) | (asked == seen)) & (seen != PAD)
    return allowed | torch.eye(length, dtype=torch.bool)


def _pad(rows: Sequence[Sequence[int]], length: int, value: int) -> npt.NDArray[np.int64]:
    out = np.full((len(rows), length), value, dtype=np.int64)
    for row, values in zip(out, rows, strict=True):
        row[: len(values)] = values
    return out
