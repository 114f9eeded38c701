"""Fetching: what is not allowed is not even connected to, and allowed hosts may not be slow, endless or untrue."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from app.addresses import Network
from app.errors import ApiError
from app.fetch import FAILED, REFUSED, Fetcher, FetchPolicy
from app.media_url import parse_host_rule
from app.store import MediaStore
from runner.errors import RequestError
from tests.app.media_host import (
    INSIDE,
    PUBLIC,
    Names,
    Talk,
    by_path,
    drip,
    loopback_network,
    media_host,
    reply,
    say,
    server_tls,
)
from tests.app.test_media_url import REFUSED as REFUSED_SPELLINGS

CLIP = bytes(range(256)) * 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MediaStore]:
    store = MediaStore(tmp_path, 1 << 20)
    yield store
    store.close()


def make_fetcher(
    store: MediaStore, *rules: str, network: Network | None = None, redirects: int = 0, **policy: float
) -> Fetcher:
    wanted = FetchPolicy(
        rules=tuple(parse_host_rule(rule) for rule in rules),
        max_bytes=100_000,
        max_redirects=redirects,
        total_s=5.0,
        idle_s=2.0,
        min_bytes_per_s=1.0,
    )
    return Fetcher(replace(wanted, **policy), network or loopback_network(), store)  # type: ignore[arg-type]


async def fetch(fetcher: Fetcher, url: str) -> bytes:
    with ExitStack() as resources:
        return Path((await fetcher.fetch(url, param="where", resources=resources)).path).read_bytes()


async def refuse(fetcher: Fetcher, url: str, code: str | None) -> str:
    """The message; it names the place in the request and no address, and nothing stays on disk."""
    with pytest.raises(RequestError) as caught:
        await fetch(fetcher, url)
    error = caught.value
    assert (error.param, error.code) == ("where", code)
    assert "127." not in error.message and "media.test" not in error.message
    assert (fetcher._store.count(), fetcher._store.quota.used_bytes) == (0, 0)
    return error.message


async def test_an_allowed_url_becomes_a_file(store: MediaStore) -> None:
    """Original Host, nothing compressed; the file is the request's, and gone with it."""
    with media_host(reply(CLIP)) as host:
        fetcher = make_fetcher(store, f"media.test:{host.port}")
        assert await fetch(fetcher, f"http://Media.Test:{host.port}/v.mp4?sig=a%2Fb") == CLIP
    head = host.requests[0].decode().lower()
    assert head.startswith("get /v.mp4?sig=a%2fb http/1.1\r\n")
    assert f"\r\nhost: media.test:{host.port}\r\n" in head and "\r\naccept-encoding: identity\r\n" in head
    assert (store.count(), store.quota.used_bytes, host.connections) == (0, 0, 1)


# ---------------------------------------------------------------------------------------------- what is not dialled


@pytest.mark.parametrize("url", REFUSED_SPELLINGS)
async def test_odd_spellings_are_not_looked_up(store: MediaStore, url: str) -> None:
    """Whatever they would mean, with every address allowed."""
    names = Names(**{"example.com": [(PUBLIC,)]})
    fetcher = make_fetcher(
        store, "example.com", PUBLIC, network=replace(loopback_network(names), allows=lambda _: True)
    )
    await refuse(fetcher, url, REFUSED)
    assert names.lookups == []


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.0.0.1",
        "169.254.169.254",
        "::1",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "0.0.0.0",
    ],
)
async def test_names_with_private_addresses_are_not_dialled(store: MediaStore, address: str) -> None:
    """By the rule that production uses; one bad address among good ones is enough."""
    with media_host(reply(CLIP)) as host:
        for found in ((address,), ("8.8.8.8", address)):
            network = Network(resolve=Names(media_test=[found]))
            fetcher = make_fetcher(store, f"media.test:{host.port}", network=network)
            assert "not public" in await refuse(fetcher, f"http://media.test:{host.port}/", REFUSED)
    assert host.connections == 0


@pytest.mark.parametrize("host_part", ["127.0.0.1", "localhost", "[::1]"])
async def test_this_machine_is_not_dialled_even_if_it_is_on_the_list(store: MediaStore, host_part: str) -> None:
    with media_host(reply(CLIP)) as host:
        rule = f"{host_part}:{host.port}"
        await refuse(make_fetcher(store, rule, network=Network()), f"http://{rule}/", REFUSED)
    assert host.connections == 0


async def test_hosts_that_are_not_on_the_list_are_not_looked_up(store: MediaStore) -> None:
    names = Names(media_test=[(PUBLIC,)], other_test=[(PUBLIC,)])
    with media_host(reply(CLIP)) as host:
        fetcher = make_fetcher(store, "media.test", network=loopback_network(names))
        for url in (
            f"http://other.test:{host.port}/",
            f"http://media.test:{host.port}/",
            f"http://{PUBLIC}:{host.port}/",
        ):
            await refuse(fetcher, url, REFUSED)
    assert (host.connections, names.lookups) == (0, [])


async def test_a_name_without_addresses(store: MediaStore) -> None:
    fetcher = make_fetcher(store, "unknown.test", network=loopback_network())
    assert "no address" in await refuse(fetcher, "https://unknown.test/", FAILED)


async def test_rebinding_between_check_and_connection(store: MediaStore) -> None:
    """The name is looked up once a fetch: what a later lookup would say is never dialled unchecked."""
    names = Names(media_test=[(PUBLIC,), (INSIDE,)])
    with media_host(reply(CLIP)) as host, media_host(reply(b"secret"), INSIDE, host.port) as inside:
        fetcher = make_fetcher(store, f"media.test:{host.port}", network=loopback_network(names))
        url = f"http://media.test:{host.port}/"
        assert await fetch(fetcher, url) == CLIP
        assert names.lookups == ["media.test"]
        await refuse(fetcher, url, REFUSED)
    assert (host.connections, inside.connections) == (1, 0)


async def test_a_dead_address_is_followed_by_the_next_checked_one(store: MediaStore) -> None:
    names = Names(media_test=[("127.0.0.3", PUBLIC)])
    network = replace(loopback_network(names), allows=lambda address: str(address) != INSIDE)
    with media_host(reply(CLIP)) as host:
        assert (
            await fetch(
                make_fetcher(store, f"media.test:{host.port}", network=network), f"http://media.test:{host.port}/"
            )
            == CLIP
        )


# --------------------------------------------------------------------------------------------------------- redirects


async def test_redirects_are_refused_unless_asked_for(store: MediaStore) -> None:
    with media_host(reply(b"", "302 Found", location="/next")) as host:
        fetcher = make_fetcher(store, f"media.test:{host.port}")
        assert "redirects" in await refuse(fetcher, f"http://media.test:{host.port}/", REFUSED)
    assert host.connections == 1


async def test_redirects_are_followed_as_often_as_allowed(store: MediaStore) -> None:
    steps = {f"/{n}": reply(b"", "307 Temporary Redirect", location=f"{n + 1}") for n in range(3)}
    with media_host(by_path({**steps, "/3": reply(CLIP)})) as host:
        url = f"http://media.test:{host.port}/0"
        assert await fetch(make_fetcher(store, f"media.test:{host.port}", redirects=3), url) == CLIP
        message = await refuse(make_fetcher(store, f"media.test:{host.port}", redirects=2), url, REFUSED)
    assert "more than 2 times" in message
    assert host.connections == 4 + 3


@pytest.mark.parametrize(
    "location",
    ["http://inside.test:{port}/", "http://127.0.0.2:{port}/", "http://other.test:{port}/", "http://a@media.test:{port}/",
     "file:///etc/passwd", "http://2130706434:{port}/", "gopher://inside.test:{port}/", ""],
)  # fmt: skip
async def test_every_hop_is_checked(store: MediaStore, location: str) -> None:
    """An allowed host cannot send us where we would not have gone by ourselves."""
    names = Names(media_test=[(PUBLIC,)], inside_test=[(INSIDE,)], other_test=[(INSIDE,)])
    with media_host(reply(CLIP), INSIDE) as inside:
        talk = reply(b"", "301 Moved", location=location.format(port=inside.port))
        with media_host(talk, PUBLIC, inside.port) as host:
            rules = [f"{name}:{inside.port}" for name in ("media.test", "inside.test", INSIDE)]
            fetcher = make_fetcher(store, *rules, network=loopback_network(names), redirects=5)
            await refuse(fetcher, f"http://media.test:{host.port}/", REFUSED)
    assert inside.connections == 0


async def test_a_name_that_changes_between_hops_is_checked_again(store: MediaStore) -> None:
    names = Names(media_test=[(PUBLIC,), (INSIDE,)])
    with (
        media_host(reply(b"", "302 Found", location="/next")) as host,
        media_host(reply(b"x"), INSIDE, host.port) as inside,
    ):
        fetcher = make_fetcher(store, f"media.test:{host.port}", network=loopback_network(names), redirects=1)
        await refuse(fetcher, f"http://media.test:{host.port}/", REFUSED)
    assert (host.connections, inside.connections) == (1, 0)


# --------------------------------------------------------------------------------------------------------------- TLS


async def test_the_certificate_is_checked_against_the_name(store: MediaStore) -> None:
    """The dialled address is not in the certificate; the name is, and it is what the server is asked for (SNI)."""
    asked: list[str | None] = []
    tls = server_tls()
    tls.sni_callback = lambda _, name, __: asked.append(name)
    names = Names(media_test=[(PUBLIC,)], wrong_test=[(PUBLIC,)])
    with media_host(reply(CLIP), tls=tls) as host:
        fetcher = make_fetcher(
            store, f"media.test:{host.port}", f"wrong.test:{host.port}", network=loopback_network(names)
        )
        assert await fetch(fetcher, f"https://media.test:{host.port}/") == CLIP
        assert "failed" in await refuse(fetcher, f"https://wrong.test:{host.port}/", FAILED)
        untrusting = replace(loopback_network(), ssl_context=Network().ssl_context)
        await refuse(
            make_fetcher(store, f"media.test:{host.port}", network=untrusting),
            f"https://media.test:{host.port}/",
            FAILED,
        )
    assert asked == ["media.test", "wrong.test", "media.test"]
    assert len(host.requests) == 1


async def test_https_does_not_step_down(store: MediaStore) -> None:
    with media_host(reply(CLIP)) as plain:
        redirect = reply(b"", "302 Found", location=f"http://media.test:{plain.port}/")
        with media_host(redirect, tls=server_tls()) as host:
            rules = [f"media.test:{port}" for port in (plain.port, host.port)]
            message = await refuse(
                make_fetcher(store, *rules, redirects=1), f"https://media.test:{host.port}/", REFUSED
            )
    assert "https to http" in message
    assert plain.connections == 0


# ------------------------------------------------------------------------------------------------- answers gone wrong


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"
BROKEN: dict[str, tuple[Talk, str, str | None]] = {
    "not_found": (reply(CLIP, "404 Not Found"), "status 404", FAILED),
    "partial": (reply(CLIP, "206 Partial Content"), "status 206", FAILED),
    "empty": (reply(b""), "empty", FAILED),
    "gzip": (reply(CLIP, content_encoding="gzip"), "compressed", FAILED),
    "claims_more_than_fits": (reply(CLIP, content_length="100001"), "100000 bytes", None),
    "claims_5_gb": (reply(CLIP, content_length=str(5 << 30)), "100000 bytes", None),
    "claims_more_than_it_sends": (reply(CLIP, content_length=str(len(CLIP) + 1)), "ended early", FAILED),
    "claims_nonsense": (reply(CLIP, content_length="-5"), "failed", FAILED),
    "claims_twice": (reply(CLIP, content_length="5\r\ncontent-length: 6"), "failed", FAILED),
    "endless": (drip(OK + b"\r\n", b"x" * 4096, 0), "100000 bytes", None),
    "endless_chunks": (drip(CHUNKED, b"1000\r\n" + b"x" * 4096 + b"\r\n", 0), "100000 bytes", None),
    "chunks_end_early": (drip(CHUNKED + b"5\r\nab", b"", 9), "took too long", FAILED),
    "endless_head": (drip(OK, b"x: y\r\n" * 500, 0), "failed", FAILED),
    "dripping_head": (drip(OK, b"x", 0.05), "took too long", FAILED),
    "endless_interim_answers": (drip(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n", 0.02), "took too long", FAILED),
    "silent": (drip(b"", b"", 9), "took too long", FAILED),
    "one_byte_a_moment": (drip(OK + b"content-length: 5000\r\n\r\n", b"x", 0.01), "too slowly", FAILED),
    "hangs_up": (say(b""), "failed", FAILED),
    "not_http": (say(b"220 smtp ready\r\n"), "failed", FAILED),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
async def test_hosts_that_misbehave(store: MediaStore, name: str) -> None:
    """Within moments, with the true reason, and with nothing kept."""
    talk, words, code = BROKEN[name]
    quick = {"idle_s": 0.5, "min_bytes_per_s": 1000.0}
    began = time.monotonic()
    with media_host(talk) as host:
        fetcher = make_fetcher(store, f"media.test:{host.port}", **quick)
        assert words in await refuse(fetcher, f"http://media.test:{host.port}/", code)
        assert time.monotonic() - began < 8.5  # the silent ones keep silent for 9


async def test_one_fetch_has_one_deadline(store: MediaStore) -> None:
    """A host that is fast enough at every moment still ends in time."""
    with media_host(drip(OK + b"\r\n", b"x" * 100, 0.05)) as host:
        fetcher = make_fetcher(store, f"media.test:{host.port}", total_s=0.4, idle_s=2.0)
        assert "longer than the limit" in await refuse(fetcher, f"http://media.test:{host.port}/", FAILED)


async def test_answers_in_chunks_or_until_the_end_are_whole(store: MediaStore) -> None:
    chunked = CHUNKED + b"%x\r\n" % len(CLIP) + CLIP + b"\r\n0\r\n\r\n"
    for answer in (chunked, b"HTTP/1.0 200 OK\r\n\r\n" + CLIP, OK + b"connection: close\r\n\r\n" + CLIP):
        with media_host(say(answer)) as host:
            assert (
                await fetch(make_fetcher(store, f"media.test:{host.port}"), f"http://media.test:{host.port}/") == CLIP
            )


async def test_the_quota_holds_for_fetched_files(tmp_path: Path) -> None:
    store = MediaStore(tmp_path, 1000)
    with media_host(reply(CLIP)) as host, pytest.raises(ApiError) as caught:
        await fetch(make_fetcher(store, f"media.test:{host.port}"), f"http://media.test:{host.port}/")
    assert (caught.value.status, caught.value.param, store.count(), store.quota.used_bytes) == (507, "where", 0, 0)
    store.close()
