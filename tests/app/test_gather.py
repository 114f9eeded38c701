"""Gathering: each URL and file once, all at the same time, and nothing left when one of them fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from app.fetch import Fetcher, FetchPolicy
from app.files import FileShelf
from app.gather import gather_media
from app.media_url import parse_host_rule
from app.schemas import ChatRequest
from app.store import MediaStore
from runner.errors import RequestError
from tests.app.conftest import user
from tests.app.media_host import MediaHost, Talk, by_path, drip, loopback_network, media_host, reply


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MediaStore]:
    store = MediaStore(tmp_path, 1 << 20)
    yield store
    store.close()


def make_fetcher(store: MediaStore, host: MediaHost) -> Fetcher:
    rules = (parse_host_rule(f"media.test:{host.port}"),)
    policy = FetchPolicy(rules=rules, max_bytes=100, max_redirects=0, total_s=5, idle_s=5, min_bytes_per_s=1)
    return Fetcher(policy, loopback_network(), store)


def chat(*urls: str) -> ChatRequest:
    content: list[dict[str, Any]] = [{"type": "video_url", "video_url": {"url": url}} for url in urls]
    return ChatRequest.model_validate({"messages": user(content)})


async def test_a_url_that_is_named_twice_is_fetched_once(store: MediaStore) -> None:
    """What needs no fetching is left alone, and so are http URLs where fetching is off."""
    with media_host(by_path({"/a": reply(b"a"), "/b": reply(b"b")})) as host, ExitStack() as resources:
        a, b = (f"http://media.test:{host.port}/{name}" for name in "ab")
        shelf = FileShelf(ttl_s=1)
        ready = await gather_media(
            chat(a, "data:,x", b, a), make_fetcher(store, host), shelf, owner="", resources=resources
        )
        assert {url: Path(file.path).read_bytes() for url, file in ready.items()} == {a: b"a", b: b"b"}
        assert await gather_media(chat(a), None, shelf, owner="", resources=resources) == {}
    assert (host.connections, store.count()) == (2, 0)


async def test_one_failure_ends_the_others(store: MediaStore) -> None:
    """At once, with its own reason and place."""
    slow: Talk = drip(b"HTTP/1.1 200 OK\r\n\r\n", b"x", 1.0)
    with media_host(by_path({"/slow": slow, "/gone": reply(b"", "404 Not Found")})) as host:
        urls = [f"http://media.test:{host.port}/{name}" for name in ("slow", "gone")]
        with ExitStack() as resources, pytest.raises(RequestError, match="status 404") as caught:
            await gather_media(
                chat(*urls), make_fetcher(store, host), FileShelf(ttl_s=1), owner="", resources=resources
            )
    assert caught.value.param == "messages[0].content[1].video_url.url"
    assert (store.count(), store.quota.used_bytes) == (0, 0)
