"""Lays out a prompt: token ids with exactly the kept placeholders, and int64 positions. Owns the one place where
pruning meets the prompt; knows no model and no scheduler.

The dense prompt is laid out first, positions are computed on it, and the rows of dropped cells are then taken out of
all columns at once: a kept cell keeps its position, and what follows continues where the dense prompt would.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attention.protocol import Range
from runner.chat import Piece, render_pieces
from runner.errors import RequestError
from runner.families.base import STRUCTURAL, DenseSpan, Family, ItemText
from runner.items import MediaItem
from runner.ranges import prefix_ranges, prune_ranges, range_at
from runner.requests import ChatMessage
from runner.tokenizer import PromptTokenizer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prompt:
    """L rows as the language model reads them.

    token_ids (L,) int64. positions (rope_axes, L) int64. item (L,) int32: which item a row belongs to, -1 for text.
    rank (L,) int64: that row's place among its item's kept cells, -1 for text and structural rows. next_position: the
    first generated token's position on every axis (dense maximum + 1). ranges: half-open, rising, apart: rows that see
    each other, also forwards.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    item: np.ndarray
    rank: np.ndarray
    next_position: int
    ranges: tuple[Range, ...] = ()

    def __post_init__(self) -> None:
        for array in (self.token_ids, self.positions, self.item, self.rank):
            array.setflags(write=False)

    def __len__(self) -> int:
        return len(self.token_ids)

    def items_within(self, rows: Range) -> list[int]:
        """Numbers of the items that have cells in these rows."""
        owners = self.item[rows[0] : rows[1]][self.rank[rows[0] : rows[1]] >= 0]
        return [int(index) for index in np.unique(owners)]

    def items_from(self, row: int) -> list[int]:
        """Numbers of the items that must be there for rows to be computed from this one on: those of a range, which is
        computed whole or not at all, or that of the next cell.

        Worked example, six rows of items - 1 0 1 - 0: from rows 0, 2, 4 and 6 on 1, 0, 0 and none; where rows 1 to 3
        are a range, from row 1 on 0 and 1.
        """
        if (found := range_at(self.ranges, row)) is not None:
            return self.items_within(found)
        cells = np.flatnonzero(self.rank[row:] >= 0)[:1] + row
        return [int(index) for index in self.item[cells]]


def build_prompt(
    family: Family, tokenizer: PromptTokenizer, chat: Sequence[ChatMessage], items: Sequence[MediaItem]
) -> tuple[Prompt, tuple[MediaItem, ...]]:
    """Render, write the items, tokenise, expand, position, prune. Returns the items as the prompt counts them, too.

    `items` stand in the order in which the chat names them; the prompt has them in its own, for some templates write
    all images first. Raises RequestError when the template does not give each item its own placeholder.
    """
    # What stands for an item need not be a token: SmolVLM's <video> is not, and a user may still write it.
    marks = (*tokenizer.marks, *map(family.placeholder_pattern, family.modalities))
    return lay_out_pieces(render_pieces(chat, family.render, marks), family, tokenizer, items)


def lay_out_pieces(
    pieces: Sequence[Piece], family: Family, tokenizer: PromptTokenizer, items: Sequence[MediaItem]
) -> tuple[Prompt, tuple[MediaItem, ...]]:
    """Everything behind the rendering; see build_prompt."""
    pieces, placed = _place_items(pieces, family, items)
    ordered = tuple(item for item, _ in placed)
    token_ids, spans = _expand(tokenizer.encode(pieces), family, placed)
    positions = family.positions(len(token_ids), spans, ordered)
    assert positions.dtype == np.int64
    ranges = prefix_ranges(family.shape.prefix, len(token_ids), spans)
    return prune_prompt(token_ids, positions, spans, ordered, ranges), ordered


Placed = tuple[MediaItem, ItemText]  # an item that has its place in the prompt, and what is written there


def _place_items(
    pieces: Sequence[Piece], family: Family, items: Sequence[MediaItem]
) -> tuple[list[Piece], list[Placed]]:
    """Put the items' texts where the template left placeholders of their kind, in order; and that order."""
    if not items:
        return list(pieces), []
    kinds: list[str] = sorted({item.kind for item in items})
    waiting = {kind: iter([item for item in items if item.kind == kind]) for kind in kinds}
    patterns = {kind: family.placeholder_pattern(kind) for kind in family.modalities if kind in kinds}
    pattern = re.compile("|".join(f"(?P<{kind}>{of_kind})" for kind, of_kind in patterns.items()))
    found: list[str] = []
    placed: list[Placed] = []

    def place(match: re.Match[str]) -> str:
        found.append(match.lastgroup or "")
        item = next(waiting[found[-1]], None)
        if item is None:
            return ""
        placed.append((item, family.write_item(item)))
        return placed[-1][1].text

    written = [Piece(pattern.sub(place, p.text), True) if p.from_template else p for p in pieces]
    wanted = [item.kind for item in items]
    if sorted(found) != sorted(wanted):
        raise RequestError(
            "invalid",
            f"the model's chat template placed {found or 'nothing'} where the messages hold {wanted}: this chat cannot "
            "be written for this model (check the roles that carry images or videos)",
            param="messages",
        )
    return written, placed


def _expand(ids: Sequence[int], family: Family, placed: Sequence[Placed]) -> tuple[np.ndarray, list[DenseSpan]]:
    """Repeat each placeholder token for the cells it stands for: the dense token ids, and where the cells are."""
    runs = [(index, cells) for index, (_, text) in enumerate(placed) for cells in text.runs]
    pads = {family.placeholder_id(kind) for kind in family.modalities}
    dense: list[np.ndarray] = []
    spans: list[DenseSpan] = []
    length = used = 0
    for token in ids:
        count = 1
        if token in pads and used < len(runs):
            item, cells = runs[used]
            assert token == family.placeholder_id(placed[item][0].kind)
            spans.append(DenseSpan(item=item, start=length, cells=cells))
            count, used = len(cells), used + 1
        dense.append(np.full(count, token, dtype=np.int64))
        length += count
    assert used == len(runs), f"{used} placeholders in the prompt for {len(runs)} runs of cells"
    return np.concatenate(dense) if dense else np.zeros(0, np.int64), spans


def prune_prompt(
    token_ids: np.ndarray,
    positions: np.ndarray,
    spans: Sequence[DenseSpan],
    items: Sequence[MediaItem],
    ranges: Sequence[Range] = (),
) -> Prompt:
    """Take the rows of dropped cells out of a dense prompt.

    Worked example: tokens [5, P, P, P, 6] at positions [0, 1, 2, 3, 4], one item whose cells 0..2 are kept as
    [1, 0, 1]: tokens [5, P, P, 6], positions [0, 1, 3, 4], ranks [-1, 0, 1, -1], next_position 5. Were the last P
    structural, it would stay whatever is kept, of rank -1.
    """
    length = len(token_ids)
    item = np.full(length, -1, dtype=np.int32)
    rank = np.full(length, -1, dtype=np.int64)
    keep = np.ones(length, dtype=np.bool_)
    for span in spans:
        flat = items[span.item].selection.keep.reshape(-1)
        item[span.start : span.start + len(span.cells)] = span.item
        rows = span.start + np.flatnonzero(span.cells != STRUCTURAL)
        cells = span.cells[span.cells != STRUCTURAL]
        rank[rows] = np.cumsum(flat)[cells] - 1
        keep[rows] = flat[cells]
    return Prompt(
        token_ids=token_ids[keep],
        positions=np.ascontiguousarray(positions[:, keep]),
        item=item[keep],
        rank=rank[keep],
        next_position=int(positions.max()) + 1 if length else 0,
        ranges=prune_ranges(ranges, keep),
    )
