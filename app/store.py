"""Owns the files that uploads become: server-made names, one folder each, gone when their request ends.

Knows nothing of HTTP or of what is in a file. Each server process keeps its own locked folder under the media folder,
so that the sweep at start removes what dead servers left and nothing of a living one.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import BinaryIO

from app.errors import ApiError
from runner.errors import RequestError

RUN_PREFIX = "run-"
LOCK_NAME = ".lock"
WRITE_BYTES = 1 << 20


class MediaStore:
    """The folder of this server process. Open it once; `close` removes all of it."""

    def __init__(self, media_dir: Path) -> None:
        media_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The outer lock keeps a sibling's sweep away between the making of our folder and the locking of it.
        with (media_dir / LOCK_NAME).open("wb") as outer:
            fcntl.flock(outer, fcntl.LOCK_EX)
            _sweep(media_dir)
            self.folder = Path(tempfile.mkdtemp(prefix=RUN_PREFIX, dir=media_dir))
            self._lock = (self.folder / LOCK_NAME).open("wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def create(self, max_bytes: int) -> Upload:
        return Upload(Path(tempfile.mkdtemp(dir=self.folder)), max_bytes)

    def count(self) -> int:
        """Uploads on disk now."""
        return sum(entry.is_dir() for entry in os.scandir(self.folder))

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()


class Upload:
    """One file being written, then read by the engine. Bytes are counted as they come, whatever the client claimed."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.path = folder / "media"
        self.size = 0
        self._max_bytes = max_bytes
        self._file: BinaryIO = self.path.open("wb", buffering=0)
        self._buffer = bytearray()

    async def write(self, data: bytes) -> None:
        self.size += len(data)
        if self.size > self._max_bytes:
            raise RequestError(
                "too_large", f"the file is larger than the limit of {self._max_bytes} bytes", param="file"
            )
        self._buffer += data
        if len(self._buffer) >= WRITE_BYTES:
            await self._flush()

    async def finish(self) -> None:
        await self._flush()
        self._file.close()

    def remove(self) -> None:
        self._file.close()
        shutil.rmtree(self.path.parent, ignore_errors=True)

    async def _flush(self) -> None:
        data, self._buffer = self._buffer, bytearray()
        try:
            await asyncio.to_thread(_write_all, self._file, data)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            message = "the server's disk is full" if full else "the server could not store the file"
            raise ApiError(507 if full else 500, message, "server_error", "file", "storage") from error


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
