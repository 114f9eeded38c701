"""The shelf: a file is its owner's, until it expires or is deleted, and its readers' until they are done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from app import files
from app.errors import ApiError
from app.files import FileRecord, FileShelf
from app.store import MediaStore
from runner.errors import RequestError


@dataclass
class Clock:
    now: float = 1000.5

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MediaStore]:
    store = MediaStore(tmp_path, 1000)
    yield store
    store.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def shelf(clock: Clock) -> FileShelf:
    return FileShelf(ttl_s=100, now=clock)


async def put(
    shelf: FileShelf, store: MediaStore, data: bytes = b"clip", owner: str = "me", ttl_s: int | None = None
) -> FileRecord:
    upload = store.create(1000)
    await upload.write(data)
    await upload.finish()
    return shelf.add(upload, owner=owner, filename="c.mp4", purpose="vision", ttl_s=ttl_s)


def is_known(shelf: FileShelf, record: FileRecord, owner: str = "me") -> bool:
    if record in shelf.list(owner):
        return shelf.get(record.id, owner, param="file_id") == record
    with pytest.raises(RequestError) as caught:
        shelf.get(record.id, owner, param="file_id")
    assert (caught.value.kind, caught.value.code, caught.value.param) == ("not_found", "file_not_found", "file_id")
    return False


async def test_a_file_is_its_owners(shelf: FileShelf, store: MediaStore) -> None:
    """To others it is not forbidden but unknown."""
    mine = await put(shelf, store)
    theirs = await put(shelf, store, owner="you")
    assert mine.id != theirs.id and mine.id.startswith("file-")
    assert (is_known(shelf, mine), is_known(shelf, theirs), is_known(shelf, theirs, "you")) == (True, False, True)
    assert (shelf.list("me"), shelf.list("you"), shelf.list("")) == ([mine], [theirs], [])
    with pytest.raises(RequestError):
        shelf.delete(theirs.id, "me", param="file_id")
    assert is_known(shelf, theirs, "you")


async def test_a_deleted_file_leaves_nothing(shelf: FileShelf, store: MediaStore) -> None:
    record = await put(shelf, store)
    assert (store.count(), store.quota.used_bytes) == (1, 4)
    shelf.delete(record.id, "me", param="file_id")
    assert (is_known(shelf, record), store.count(), store.quota.used_bytes) == (False, 0, 0)
    with pytest.raises(RequestError):
        shelf.delete(record.id, "me", param="file_id")


@pytest.mark.parametrize("end", ["deleted", "expired"])
async def test_readers_keep_what_others_no_longer_see(
    shelf: FileShelf, store: MediaStore, clock: Clock, end: str
) -> None:
    """The bytes, and their share of the quota, go with the last of them."""
    record = await put(shelf, store)
    first, second = ExitStack(), ExitStack()
    held = shelf.hold(record.id, "me", param="file_id", resources=first)
    shelf.hold(record.id, "me", param="file_id", resources=second)
    if end == "deleted":
        shelf.delete(record.id, "me", param="file_id")
    else:
        clock.now += 100
    assert not is_known(shelf, record)
    first.close()
    assert Path(held.path).read_bytes() == b"clip"
    assert store.quota.used_bytes == 4
    second.close()
    assert (store.count(), store.quota.used_bytes) == (0, 0)


async def test_reading_does_not_end_a_file(shelf: FileShelf, store: MediaStore) -> None:
    record = await put(shelf, store)
    for _ in range(2):
        with ExitStack() as resources:
            shelf.hold(record.id, "me", param="file_id", resources=resources)
    assert is_known(shelf, record)


async def test_expiry(shelf: FileShelf, store: MediaStore, clock: Clock) -> None:
    """To the second, by the file's own word or the shelf's; nobody need ask for it."""
    usual, short = await put(shelf, store), await put(shelf, store, ttl_s=10)
    assert (usual.created_at, usual.expires_at, short.expires_at) == (1000, 1100, 1010)
    clock.now = 1009.9
    assert is_known(shelf, short)
    clock.now = 1010.0
    assert (is_known(shelf, short), is_known(shelf, usual)) == (False, True)
    clock.now = 1100.0
    shelf.sweep()
    assert (len(shelf), store.count()) == (0, 0)


async def test_the_quota_counts_stored_files(shelf: FileShelf, store: MediaStore) -> None:
    await put(shelf, store, b"x" * 900)
    upload = store.create(1000)
    with pytest.raises(ApiError) as caught:
        await upload.write(b"x" * 101)
    upload.remove()
    assert (caught.value.status, caught.value.code) == (507, "storage")
    assert "quota is 1000 bytes" in caught.value.message
    assert (store.count(), store.quota.used_bytes) == (1, 900)


async def test_one_owner_has_only_so_many_files(
    shelf: FileShelf, store: MediaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_FILES_PER_OWNER", 2)
    await put(shelf, store)
    await put(shelf, store)
    with pytest.raises(ApiError) as caught:
        await put(shelf, store)
    assert caught.value.status == 507
    await put(shelf, store, owner="you")
