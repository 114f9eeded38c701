"""Rows for a sequence that is already being answered: new frames, and text between them. Owns how they are written and
where they stand; knows no queue and no tensors' contents.

What is appended reads as if it had stood in the prompt: its positions go on from the last row's, and it may hold items,
pruned or not. Tokens drawn before it stay where they are, between the prompt and it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runner.chat import Piece
from runner.errors import RequestError
from runner.families.base import Family, Kind
from runner.items import MediaItem
from runner.prompt import Prompt, lay_out_pieces
from runner.requests import ChatMessage, InlineBytes, MediaPart, TextPart
from runner.tokenizer import PromptTokenizer

_BEFORE, _AFTER = "\ue004", "\ue005"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Addition:
    """prompt: the rows, laid out as if they stood alone, from position 0. items: theirs."""

    prompt: Prompt
    items: tuple[MediaItem, ...]


def lay_out_addition(family: Family, tokenizer: PromptTokenizer, parts: Sequence[str | MediaItem]) -> Addition:
    """Text is text, whatever it says; an item is written as the model's template writes it between two texts. Raises
    RequestError where the template puts items elsewhere, or the model reads its prompt both ways."""
    if family.shape.prefix == "prompt":
        raise RequestError("invalid", f"{family.name} reads its prompt as a whole: nothing can be appended to it")
    pieces = [
        Piece(part, from_template=False)
        if isinstance(part, str)
        else Piece(_wrap_item(family, part.kind), from_template=True)
        for part in parts
    ]
    items = [part for part in parts if not isinstance(part, str)]
    prompt, ordered = lay_out_pieces(pieces, family, tokenizer, items)
    if not len(prompt):
        raise RequestError("invalid", "there is nothing to append")
    return Addition(prompt=prompt, items=ordered)


def _wrap_item(family: Family, kind: Kind) -> str:
    """What the template writes for an item that stands between two texts."""
    media = MediaPart(kind=kind, source=InlineBytes(data=b""))
    parts = (TextPart(text=_BEFORE), media, TextPart(text=_AFTER))
    rendered = family.render((ChatMessage(role="user", parts=parts),))
    return rendered.partition(_BEFORE)[2].partition(_AFTER)[0]


def extend_prompt(prompt: Prompt, output: Sequence[int], addition: Prompt, *, num_items: int) -> Prompt:
    """The prompt, the tokens drawn so far, and the addition, as one. num_items: of the prompt.

    Where nothing was drawn yet, the addition stands where more of the prompt's text would; else behind the drawn
    tokens. Worked example: a prompt of 2 text rows at positions 0 and 1 whose clip's ticks reach 4 (next_position 5).
    An addition of one row stands at 2; after one token drawn, which stands at 5, it stands at 6.
    """
    drawn = len(output)
    after = prompt.next_position + np.arange(drawn)
    start = prompt.next_position + drawn if drawn else _next_text_position(prompt)
    axes = len(prompt.positions)
    length = len(prompt) + drawn
    return Prompt(
        token_ids=np.concatenate((prompt.token_ids, np.asarray(output, dtype=np.int64), addition.token_ids)),
        positions=np.concatenate(
            (prompt.positions, np.broadcast_to(after, (axes, drawn)), addition.positions + start), axis=1
        ),
        item=np.concatenate(
            (prompt.item, np.full(drawn, -1, np.int32), np.where(addition.item >= 0, addition.item + num_items, -1))
        ).astype(np.int32),
        rank=np.concatenate((prompt.rank, np.full(drawn, -1, np.int64), addition.rank)),
        next_position=max(prompt.next_position + drawn, start + addition.next_position),
        ranges=(*prompt.ranges, *((first + length, stop + length) for first, stop in addition.ranges)),
    )


def _next_text_position(prompt: Prompt) -> int:
    """Where a row of text after the last one would stand; a prompt that ends in an item goes on at its end."""
    if not len(prompt) or prompt.item[-1] >= 0:
        return prompt.next_position
    return int(prompt.positions[:, -1].max()) + 1
