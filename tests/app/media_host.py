"""A media host on loopback that misbehaves as told, and counts who comes.

127.0.0.1 plays a public address and the rest of 127/8 the inside: the tests' Network says so, nothing is replaced.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from app.addresses import Network
from app.media_url import Address

CERTIFICATES = Path(__file__).parent / "certificates"
PUBLIC = "127.0.0.1"
INSIDE = "127.0.0.2"

Talk = Callable[[socket.socket, bytes], None]


class MediaHost:
    """`talk` gets each connection and the head of its request; `connections` counts them, also those without one."""

    def __init__(self, talk: Talk, address: str = PUBLIC, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.connections = 0
        self.requests: list[bytes] = []
        self._talk = talk
        self._tls = tls
        self._listener = socket.create_server((address, port))
        self.port = int(self._listener.getsockname()[1])
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(10)
        with connection, contextlib.suppress(OSError):
            stream = self._tls.wrap_socket(connection, server_side=True) if self._tls else connection
            with stream:
                head = b""
                while b"\r\n\r\n" not in head:
                    data = stream.recv(65536)
                    if not data:
                        return
                    head += data
                self.requests.append(head)
                self._talk(stream, head)


@contextlib.contextmanager
def media_host(
    talk: Talk, address: str = PUBLIC, port: int = 0, tls: ssl.SSLContext | None = None
) -> Iterator[MediaHost]:
    host = MediaHost(talk, address, port, tls)
    try:
        yield host
    finally:
        host.close()


def reply(body: bytes, status: str = "200 OK", **headers: str) -> Talk:
    """An answer with its right length, or with what `headers` say instead (underscores are dashes)."""
    named = {"content-length": str(len(body))} | {key.replace("_", "-"): value for key, value in headers.items()}
    lines = "".join(f"{key}: {value}\r\n" for key, value in named.items() if value)
    whole = f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body

    def talk(stream: socket.socket, head: bytes) -> None:
        stream.sendall(whole)

    return talk


def drip(head: bytes, piece: bytes, pause_s: float) -> Talk:
    """`head`, then `piece` again and again for as long as somebody listens."""

    def talk(stream: socket.socket, _: bytes) -> None:
        stream.sendall(head)
        stream.settimeout(pause_s or None)
        while True:
            stream.sendall(piece)
            with contextlib.suppress(TimeoutError):
                if pause_s and not stream.recv(1):
                    return

    return talk


def say(answer: bytes) -> Talk:
    return lambda stream, _: stream.sendall(answer)


def by_path(answers: Mapping[str, Talk]) -> Talk:
    def talk(stream: socket.socket, head: bytes) -> None:
        answers[head.split(b" ")[1].decode()](stream, head)

    return talk


def server_tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "server.pem", CERTIFICATES / "server.key")
    return context


def plays_public(address: Address) -> bool:
    return str(address) == PUBLIC


class Names:
    """A resolver that answers from a script: a name has the answers of its first, second... lookups."""

    def __init__(self, **answers: list[tuple[str, ...]]) -> None:
        self.lookups: list[str] = []
        self._answers = {name.replace("_", "."): list(given) for name, given in answers.items()}

    async def __call__(self, host: str, port: int) -> tuple[Address, ...]:
        self.lookups.append(host)
        answers = self._answers.get(host)
        if answers is None:
            raise OSError("no such name")
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return tuple(ipaddress.ip_address(text) for text in found)


def loopback_network(names: Names | None = None) -> Network:
    """media.test and every name of `names`, behind the rule that 127.0.0.1 is public and nothing else is."""
    context = ssl.create_default_context(cafile=CERTIFICATES / "authority.pem")
    return Network(resolve=names or Names(media_test=[(PUBLIC,)]), allows=plays_public, ssl_context=context)
