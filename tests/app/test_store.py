"""Uploads: counted while written, one folder each, gone afterwards; a sweep touches only what the dead left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from app.errors import ApiError
from app.store import LOCK_NAME, MediaStore
from runner.errors import RequestError

FULL_DEVICE = Path("/dev/full")  # every write to it says that the disk is full


@pytest.fixture
def store(tmp_path: Path):
    store = MediaStore(tmp_path / "media", 1 << 40)
    yield store
    store.close()


async def test_upload_is_written_and_removed(store: MediaStore) -> None:
    """Small and large writes arrive in order; removal leaves nothing and may be repeated."""
    upload = store.create(max_bytes=10 << 20)
    data = [b"a" * 10, b"b" * (3 << 20), b"c"]
    for chunk in data:
        await upload.write(chunk)
    await upload.finish()
    assert upload.path.read_bytes() == b"".join(data)
    assert upload.path.stat().st_mode & 0o077 == 0 or upload.path.parent.stat().st_mode & 0o077 == 0
    upload.remove()
    upload.remove()
    assert store.count() == 0


async def test_bytes_are_counted_as_they_come(store: MediaStore) -> None:
    upload = store.create(max_bytes=4)
    await upload.write(b"1234")
    with pytest.raises(RequestError) as caught:
        await upload.write(b"5")
    upload.remove()
    assert caught.value.kind == "too_large"
    assert "4 bytes" in caught.value.message


@pytest.mark.skipif(not FULL_DEVICE.exists(), reason="no /dev/full on this system")
async def test_full_disk_is_said_to_be_full(store: MediaStore) -> None:
    """Not a 400 that blames the body."""
    upload = store.create(max_bytes=1 << 30)
    upload._file.close()
    upload._file = FULL_DEVICE.open("wb", buffering=0)
    await upload.write(b"x")
    with pytest.raises(ApiError) as caught:
        await upload.finish()
    upload.remove()
    assert (caught.value.status, caught.value.message) == (507, "the server's disk is full")


def test_sweep_leaves_the_living_alone(tmp_path: Path) -> None:
    """A second server on the same folder removes what a killed one left and nothing of the first."""
    media = tmp_path / "media"
    living = MediaStore(media, 1 << 40)
    upload = living.create(max_bytes=10)
    left = "import os, sys; from pathlib import Path; from app.store import MediaStore;"
    left += "s = MediaStore(Path(sys.argv[1]), 1 << 40); s.create(10); print(s.folder, flush=True); os._exit(9)"
    killed = subprocess.run([sys.executable, "-c", left, str(media)], capture_output=True, text=True, check=False)
    dead = Path(killed.stdout.strip())
    assert dead.is_dir()
    (media / "run-unborn").mkdir()
    other = MediaStore(media, 1 << 40)
    assert not dead.exists()
    assert not (media / "run-unborn").exists()
    assert upload.path.exists()
    upload.remove()
    other.close()
    living.close()
    assert [path.name for path in media.iterdir()] == [LOCK_NAME]
