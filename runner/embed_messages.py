"""The plain data of embedding requests. Owns their structs; knows nothing of torch, sockets or HTTP.

All are frozen, as in runner/messages.py, which lists the types that cross the door.
"""

from __future__ import annotations

from runner.requests import ChatMessage, EvsOptions, Message


class ChatInput(Message, frozen=True, kw_only=True):
    """A chat to be embedded. The checkpoint's own instruction is put before it where it brings no system turn."""

    chat: tuple[ChatMessage, ...]


class TokensInput(Message, frozen=True, kw_only=True):
    """Token ids to be embedded as they are, without any template."""

    token_ids: tuple[int, ...]


EmbedInput = ChatInput | TokensInput


class Embed(Message, frozen=True, kw_only=True):
    """One vector for each input. dimensions None: all the model has; normalize: of length 1."""

    request_id: str
    inputs: tuple[EmbedInput, ...]
    evs: EvsOptions = EvsOptions()
    dimensions: int | None = None
    normalize: bool = True
    priority: int = 0


class Vector(Message, frozen=True, kw_only=True):
    """The vector of one input: little-endian float32."""

    request_id: str
    index: int
    data: bytes
