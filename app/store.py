"""Owns the files that media become: server-made names, one folder each, together within a quota.

Knows nothing of HTTP or of what is in a file. Uploads, fetched and stored files all count against the quota while they
are on disk. Each server process keeps its own locked folder under the media folder,
so that the sweep at start removes what dead servers left and nothing of a living one.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import BinaryIO

from app.errors import ApiError
from runner.errors import RequestError

DISK_ERRORS = {
    errno.ENOSPC: "the server's disk is full",
    errno.EDQUOT: "the server's disk quota is used up",
    errno.EFBIG: "the server's disk takes no file this large",
}
RUN_PREFIX = "run-"
LOCK_NAME = ".lock"
WRITE_BYTES = 1 << 20


class MediaStore:
    """The folder of this server process. Open it once; `close` removes all of it."""

    def __init__(self, media_dir: Path, quota_bytes: int) -> None:
        self.quota = Quota(quota_bytes)
        media_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The outer lock keeps a sibling's sweep away between the making of our folder and the locking of it.
        with (media_dir / LOCK_NAME).open("wb") as outer:
            fcntl.flock(outer, fcntl.LOCK_EX)
            _sweep(media_dir)
            self.folder = Path(tempfile.mkdtemp(prefix=RUN_PREFIX, dir=media_dir))
            self._lock = (self.folder / LOCK_NAME).open("wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def create(self, max_bytes: int, *, param: str = "file") -> Upload:
        """A new empty file. `param` is what to call it when it turns out too large."""
        folder = self.folder / secrets.token_hex(16)
        try:
            folder.mkdir(mode=0o700)
            return Upload(folder, max_bytes, self.quota, param)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise describe_disk_error(error, param) from error

    def count(self) -> int:
        """Uploads on disk now."""
        return sum(entry.is_dir() for entry in os.scandir(self.folder))

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()


class Quota:
    """Bytes of media on disk, and how many there may be."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def take(self, count: int, param: str) -> None:
        if self.used_bytes + count > self.limit_bytes:
            message = (
                f"the server's media folder is full (its quota is {self.limit_bytes} bytes); delete stored files, or "
                "try again later"
            )
            raise ApiError(507, message, "server_error", param, "storage")
        self.used_bytes += count

    def give_back(self, count: int) -> None:
        self.used_bytes -= count


class Upload:
    """One file being written, then read by the engine. Bytes are counted as they come, whatever was claimed."""

    def __init__(self, folder: Path, max_bytes: int, quota: Quota, param: str) -> None:
        self.path = folder / "media"
        self.size = 0
        self._max_bytes = max_bytes
        self._quota = quota
        self._param = param
        self._charged = 0
        self._file: BinaryIO = self.path.open("wb", buffering=0)
        self._buffer = bytearray()

    async def write(self, data: bytes) -> None:
        self.check_size(self.size + len(data))
        self._quota.take(len(data), self._param)
        self._charged += len(data)
        self.size += len(data)
        self._buffer += data
        if len(self._buffer) >= WRITE_BYTES:
            await self._flush()

    def check_size(self, size: int) -> None:
        """Of what has come, or of what a length claims will come."""
        if size > self._max_bytes:
            message = f"the file is larger than the limit of {self._max_bytes} bytes"
            raise RequestError("too_large", message, param=self._param)

    async def finish(self) -> None:
        await self._flush()
        self._file.close()

    def remove(self) -> None:
        self._file.close()
        shutil.rmtree(self.path.parent, ignore_errors=True)
        self._quota.give_back(self._charged)
        self._charged = 0

    async def _flush(self) -> None:
        data, self._buffer = self._buffer, bytearray()
        try:
            await asyncio.to_thread(_write_all, self._file, data)
        except OSError as error:
            raise describe_disk_error(error, self._param) from error


def describe_disk_error(error: OSError, param: str) -> ApiError:
    full = DISK_ERRORS.get(error.errno or 0)
    message = full or "the server could not store the file"
    return ApiError(507 if full else 500, message, "server_error", param, "storage")


def _write_all(file: BinaryIO, data: bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _sweep(media_dir: Path) -> None:
    """A folder whose lock is free belongs to a server that died."""
    for folder in media_dir.glob(RUN_PREFIX + "*"):
        try:
            with (folder / LOCK_NAME).open("wb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            continue
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)  # no lock file: it died while it was being made
