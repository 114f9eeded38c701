"""Owns the files that clients store for later requests: whose they are, until when, and who reads them just now.

Knows nothing of HTTP or of what is in a file. A file that is deleted or expires while a request reads it is gone for
everybody else at once, and its bytes go when the last reader is done. The shelf lives as long as the server.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

from app.errors import ApiError
from app.store import Upload
from runner.errors import RequestError
from runner.requests import StoredFile

ID_PREFIX = "file-"
MAX_FILES_PER_OWNER = 10_000
SWEEP_S = 30.0


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """What a client is told about its file. `filename` is the client's own word and names nothing on disk."""

    id: str
    owner: str
    size: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str


@dataclass(eq=False)
class _Shelved:
    record: FileRecord
    upload: Upload
    readers: int = 0
    state: Literal["kept", "dropped"] = "kept"


class FileShelf:
    """All stored files of one server. An id that is not `owner`'s is as unknown as one that never was."""

    def __init__(self, *, ttl_s: int, now: Callable[[], float] = time.time) -> None:
        self._ttl_s = ttl_s
        self._now = now
        self._files: dict[str, _Shelved] = {}

    def __len__(self) -> int:
        return len(self._files)

    def add(self, upload: Upload, *, owner: str, filename: str, purpose: str, ttl_s: int | None) -> FileRecord:
        """From here on the bytes are the shelf's, not the request's that brought them."""
        self.sweep()
        if sum(file.record.owner == owner for file in self._files.values()) >= MAX_FILES_PER_OWNER:
            message = f"there are {MAX_FILES_PER_OWNER} stored files already; delete some first"
            raise ApiError(507, message, "server_error", "file", "storage")
        created_at = int(self._now())
        record = FileRecord(
            id=ID_PREFIX + secrets.token_hex(16),
            owner=owner,
            size=upload.size,
            created_at=created_at,
            expires_at=created_at + (self._ttl_s if ttl_s is None else ttl_s),
            filename=filename,
            purpose=purpose,
        )
        self._files[record.id] = _Shelved(record, upload)
        return record

    def get(self, file_id: str, owner: str, *, param: str) -> FileRecord:
        return self._find(file_id, owner, param).record

    def list(self, owner: str) -> list[FileRecord]:
        """Oldest first."""
        self.sweep()
        return [file.record for file in self._files.values() if file.record.owner == owner]

    def hold(self, file_id: str, owner: str, *, param: str, resources: ExitStack) -> StoredFile:
        """The file to read; it stays readable until `resources` close, whatever becomes of it meanwhile."""
        file = self._find(file_id, owner, param)
        file.readers += 1
        resources.callback(self._release, file)
        return StoredFile(path=str(file.upload.path))

    def delete(self, file_id: str, owner: str, *, param: str) -> None:
        self._drop(self._find(file_id, owner, param))

    def sweep(self) -> None:
        """Drop what has expired."""
        now = self._now()
        for file in [file for file in self._files.values() if file.record.expires_at <= now]:
            self._drop(file)

    async def sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self.sweep()

    def _find(self, file_id: str, owner: str, param: str) -> _Shelved:
        self.sweep()
        file = self._files.get(file_id)
        if file is None or file.record.owner != owner:
            message = "there is no such file here; it may have expired or been deleted"
            raise RequestError("not_found", message, param=param, code="file_not_found")
        return file

    def _drop(self, file: _Shelved) -> None:
        del self._files[file.record.id]
        file.state = "dropped"
        if file.readers == 0:
            file.upload.remove()

    def _release(self, file: _Shelved) -> None:
        file.readers -= 1
        if file.readers == 0 and file.state == "dropped":
            file.upload.remove()
