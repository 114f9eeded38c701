"""From a chat to pieces of text that are either the template's or a user's. Owns the guard that user text stays text;
knows no pictures and no positions.

A user may write `<|im_end|>` or a placeholder. The template's own marks must become tokens and the user's must not, so
when (and only when) the users' texts, written one after another, hold such a mark, the template is rendered over
stand-ins and the users' words are put back afterwards, as pieces of their own.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec
from jinja2 import TemplateError

from runner.errors import RequestError
from runner.requests import ChatMessage, TextPart


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of the rendered prompt; only in a template's piece do marks become tokens."""

    text: str
    from_template: bool


def render_pieces(
    chat: Sequence[ChatMessage], render: Callable[[Sequence[ChatMessage]], str], marks: Iterable[str]
) -> list[Piece]:
    """Render a chat. `marks` are the strings that the tokenizer would turn into special tokens."""
    texts = [part.text for message in chat for part in message.parts if isinstance(part, TextPart)]
    marks = [mark for mark in marks if mark]
    together = "".join(texts)  # neighbouring parts are written without a gap: a mark may begin in one, end in another
    if not any(mark in together for mark in marks):
        return [Piece(_render(render, chat), from_template=True)]
    stand_ins = [f"\ue000{secrets.token_hex(8)}\ue001" for _ in texts]
    rendered = _render(render, _replace_texts(chat, stand_ins))
    pieces = []
    for stand_in, text in zip(stand_ins, texts, strict=True):
        before, found, rendered = rendered.partition(stand_in)
        pieces.append(Piece(before, from_template=True))
        if found:
            pieces.append(Piece(text, from_template=False))
        else:  # the template leaves this text out
            pieces.pop()
            rendered = before
    return [*pieces, Piece(rendered, from_template=True)]


def _render(render: Callable[[Sequence[ChatMessage]], str], chat: Sequence[ChatMessage]) -> str:
    """Templates refuse chats that they cannot write (roles out of turn, no content) by failing."""
    try:
        return render(chat)
    except TemplateError as error:
        message = f"the model's chat template cannot write this chat: {error}"
        raise RequestError("invalid", message, param="messages") from error


def _replace_texts(chat: Sequence[ChatMessage], stand_ins: Sequence[str]) -> list[ChatMessage]:
    names = iter(stand_ins)

    def replace(message: ChatMessage) -> ChatMessage:
        parts = tuple(TextPart(text=next(names)) if isinstance(p, TextPart) else p for p in message.parts)
        return msgspec.structs.replace(message, parts=parts)

    return [replace(message) for message in chat]
