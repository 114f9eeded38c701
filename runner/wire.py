"""How messages travel: an 8-byte big-endian length, then msgpack. Owns framing; knows nothing of what is said."""

from __future__ import annotations

import asyncio
import socket

from runner.messages import (
    MAX_MESSAGE_BYTES,
    FromEngine,
    ToEngine,
    decode_from_engine,
    decode_to_engine,
    encode_message,
)
from runner.requests import Message

LENGTH_BYTES = 8


def encode_frame(message: Message) -> bytes:
    data = encode_message(message)
    if len(data) >= MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {len(data)} bytes is over the limit of {MAX_MESSAGE_BYTES}")
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


async def read_from_engine(reader: asyncio.StreamReader) -> FromEngine:
    """Next message from the engine. Raises IncompleteReadError at the end of the stream."""
    size = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
    return decode_from_engine(await reader.readexactly(size))


def read_to_engine(sock: socket.socket) -> ToEngine | None:
    """Next message from the client, blocking; None when the client has gone, however it went."""
    try:
        return _read(sock)
    except ConnectionError:
        return None


def _read(sock: socket.socket) -> ToEngine | None:
    head = _receive(sock, LENGTH_BYTES)
    if head is None:
        return None
    body = _receive(sock, int.from_bytes(head, "big"))
    return None if body is None else decode_to_engine(memoryview(body))


def _receive(sock: socket.socket, size: int) -> bytearray | None:
    data = bytearray(size)
    view = memoryview(data)
    done = 0
    while done < size:
        count = sock.recv_into(view[done:])
        if count == 0:
            return None
        done += count
    return data
