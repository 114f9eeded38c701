"""The engine's end of the socket, for writing. Owns the order of messages; knows nothing of what they say."""

from __future__ import annotations

import contextlib
import socket
import threading

from runner.requests import Message
from runner.wire import encode_frame


class Outbox:
    """Sends whole messages from any thread. After the client has gone, messages are dropped."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        frame = encode_frame(message)
        with self._lock, contextlib.suppress(OSError):
            self._socket.sendall(frame)
