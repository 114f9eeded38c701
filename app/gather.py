"""Owns the gathering of media that is not in the request itself: URLs are fetched, stored files are held.

Knows nothing of how a URL is fetched or a file is kept. What it gathers stays on disk until the request's resources
close; a URL or file that a chat names twice is gathered once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

from app.fetch import Fetcher
from app.files import FileShelf
from app.media import FILE_ID_SCHEME, read_scheme
from app.schemas import ChatRequest, FileContent, ImageContent, VideoContent
from runner.requests import StoredFile


async def gather_media(
    chat: ChatRequest, fetcher: Fetcher | None, shelf: FileShelf, *, owner: str, resources: ExitStack
) -> Mapping[str, StoredFile]:
    """A file for each URL that names something elsewhere. Without a fetcher http(s) URLs are left to be refused."""
    ready: dict[str, StoredFile] = {}
    remote: dict[str, str] = {}
    for param, url in iterate_urls(chat):
        match read_scheme(url):
            case "file-id" if url not in ready:
                ready[url] = shelf.hold(url[len(FILE_ID_SCHEME) :], owner, param=param, resources=resources)
            case "http" | "https" if fetcher is not None:
                remote.setdefault(url, param)
    if fetcher is not None and remote:
        ready |= await _fetch_all(remote, fetcher, resources)
    return ready


async def _fetch_all(wanted: Mapping[str, str], fetcher: Fetcher, resources: ExitStack) -> dict[str, StoredFile]:
    """All at once; the first that fails ends the others."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = {
                url: group.create_task(fetcher.fetch(url, param=param, resources=resources))
                for url, param in wanted.items()
            }
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return {url: task.result() for url, task in tasks.items()}


def iterate_urls(chat: ChatRequest) -> Iterator[tuple[str, str]]:
    """(where it stands, URL) of each part; a file id is the URL that names it."""
    for turn, message in enumerate(chat.messages):
        for place, part in enumerate(message.content or []):
            where = f"messages[{turn}].content[{place}]"
            match part:
                case ImageContent():
                    yield f"{where}.image_url.url", part.image_url.url
                case VideoContent():
                    yield f"{where}.video_url.url", part.video_url.url
                case FileContent() if part.file.file_id is not None:
                    yield f"{where}.file.file_id", FILE_ID_SCHEME + part.file.file_id
