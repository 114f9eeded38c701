"""Owns the fetching of media from http(s) URLs, in a way that cannot be turned against the server's own network.

Knows nothing of chats or of what is in the bytes. Every URL, redirects included, takes the same steps: read strictly,
looked up in the allowed hosts, resolved once, every address checked, then one of those very addresses is dialled while
the request and the certificate check keep the original name. Nothing is dialled that was not checked, whatever a name
server says later. Bytes are counted as they come; a host may be neither slow, nor endless, nor untrue about lengths.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import ExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass

import httpcore2

from app.addresses import Network
from app.media_url import Address, HostRule, MediaUrl, MediaUrlError, is_allowed, join_location, parse_media_url
from app.store import MediaStore, Upload
from app.version import VERSION
from runner.errors import RequestError
from runner.requests import StoredFile

REDIRECTS = frozenset({301, 302, 303, 307, 308})
FAILED = "url_fetch_failed"
REFUSED = "url_refused"
MAX_AT_ONCE = 16


@dataclass(frozen=True, kw_only=True)
class FetchPolicy:
    """`total_s` bounds a fetch with all its hops, `idle_s` each wait in it; over `idle_s` the rate must hold."""

    rules: tuple[HostRule, ...]
    max_bytes: int
    max_redirects: int
    total_s: float
    idle_s: float
    min_bytes_per_s: float


class Fetcher:
    def __init__(self, policy: FetchPolicy, network: Network, store: MediaStore) -> None:
        self._policy = policy
        self._network = network
        self._store = store
        self._places = asyncio.Semaphore(MAX_AT_ONCE)

    async def fetch(self, text: str, *, param: str, resources: ExitStack) -> StoredFile:
        """The URL's bytes in a file that `resources` removes. RequestError says which rule stopped it."""
        async with self._places:
            upload = self._store.create(self._policy.max_bytes, param=param)
            resources.callback(upload.remove)
            try:
                async with asyncio.timeout(self._policy.total_s):
                    await self._follow(parse_media_url(text), upload)
                    await upload.finish()
            except MediaUrlError as error:
                raise RequestError("invalid", str(error), param=param, code=REFUSED) from None
            except _FetchError as error:
                raise RequestError("invalid", str(error), param=param, code=error.code) from None
            except TimeoutError:
                message = f"the media host took longer than the limit of {self._policy.total_s:g} s"
                raise RequestError("invalid", message, param=param, code=FAILED) from None
        return StoredFile(path=str(upload.path))

    async def _follow(self, url: MediaUrl, upload: Upload) -> None:
        for hop in range(self._policy.max_redirects + 1):
            addresses = await self._check(url)
            async with _open(url, addresses, self._network, self._policy.idle_s) as response:
                if response.status not in REDIRECTS:
                    await self._read(response, upload)
                    return
                if hop < self._policy.max_redirects:
                    url = join_location(url, _header(response, b"location"))
        if self._policy.max_redirects == 0:
            raise _FetchError("the url redirects; give the address it leads to", code=REFUSED)
        raise _FetchError(f"the url redirects more than {self._policy.max_redirects} times", code=REFUSED)

    async def _check(self, url: MediaUrl) -> tuple[Address, ...]:
        """Everything that can be checked about one hop; the addresses are the only ones that may be dialled."""
        if not is_allowed(url, self._policy.rules):
            raise _FetchError("the url's host is not among those that this server fetches from", code=REFUSED)
        try:
            addresses = (url.address,) if url.address else await self._network.resolve(url.host, url.port)
        except (OSError, UnicodeError):
            addresses = ()
        if not addresses:
            raise _FetchError("the url's host has no address")
        if not all(self._network.allows(address) for address in addresses):
            raise _FetchError("the url's host has an address that is not public", code=REFUSED)
        return addresses

    async def _read(self, response: httpcore2.Response, upload: Upload) -> None:
        if response.status != 200:
            raise _FetchError(f"the media host answered with status {response.status}")
        if _header(response, b"content-encoding").lower() not in ("", "identity"):
            raise _FetchError("the media host sent a compressed answer although none was asked for")
        claimed = _header(response, b"content-length")
        if claimed.isdecimal():
            upload.check_size(int(claimed))
        began, read = time.monotonic(), 0
        async with aclosing(_chunks(response)) as chunks:
            async for chunk in chunks:
                read += len(chunk)
                await upload.write(chunk)
                waited_s = time.monotonic() - began
                if waited_s > self._policy.idle_s and read < waited_s * self._policy.min_bytes_per_s:
                    raise _FetchError("the media host sends too slowly")
        if read == 0:
            raise _FetchError("the media host sent an empty file")


class _FetchError(Exception):
    """One fetch went wrong; the message is for the client and holds neither address nor URL."""

    def __init__(self, message: str, *, code: str = FAILED) -> None:
        super().__init__(message)
        self.code = code


class _PinnedBackend(httpcore2.AsyncNetworkBackend):
    """Dials the checked addresses, one after the other, whatever name the connection is for."""

    def __init__(self, addresses: tuple[Address, ...]) -> None:
        self._addresses = addresses
        self._dialler = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,  # noqa: ARG002 - a name, which is not resolved again
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        failure: Exception = httpcore2.ConnectError("no address")
        for address in self._addresses:
            try:
                return await self._dialler.connect_tcp(str(address), port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise failure


@asynccontextmanager
async def _open(
    url: MediaUrl, addresses: tuple[Address, ...], network: Network, idle_s: float
) -> AsyncIterator[httpcore2.Response]:
    """One request on one connection of its own: nothing is shared between hops, hosts or clients."""
    scheme, host = url.scheme.encode(), url.host.encode()
    connection = httpcore2.AsyncHTTPConnection(
        httpcore2.Origin(scheme, host, url.port),
        ssl_context=network.ssl_context,
        network_backend=_PinnedBackend(addresses),
    )
    request = httpcore2.Request(
        "GET",
        httpcore2.URL(scheme=scheme, host=host, port=url.port, target=url.target.encode()),
        headers={
            "Host": url.authority,
            "User-Agent": f"evserve/{VERSION}",
            "Accept": "*/*",
            "Accept-Encoding": "identity",
            "Connection": "close",
        },
        extensions={"timeout": dict.fromkeys(("connect", "read", "write", "pool"), idle_s)},
    )
    try:
        async with connection:
            async with asyncio.timeout(idle_s * 2):  # connecting and the answer's head, however it drips
                response = await connection.handle_async_request(request)
            try:
                yield response
            finally:
                await response.aclose()
    except (httpcore2.TimeoutException, TimeoutError):
        raise _FetchError(f"the media host took too long: it has {idle_s:g} s for each step") from None
    except (httpcore2.NetworkError, httpcore2.ProtocolError):
        raise _FetchError("the connection to the media host failed or ended early") from None


async def _chunks(response: httpcore2.Response) -> AsyncGenerator[bytes, None]:
    async for chunk in response.aiter_stream():
        yield chunk


def _header(response: httpcore2.Response, name: bytes) -> str:
    return next((value.decode("latin-1").strip() for key, value in response.headers if key.lower() == name), "")
