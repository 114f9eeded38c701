"""Owns what a client may write to the file routes, and the shape of what it is told about files; both are OpenAI's.

Knows nothing of where files are kept. Purposes that promise work we do not do (batches, fine-tuning) are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.files import FileRecord
from app.schemas import Strict
from app.settings import MAX_TTL_S
from runner.errors import RequestError

MAX_PAGE = 10_000

Purpose = Literal["user_data", "vision", "assistants"]


class ExpiresAfter(Strict):
    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=1, le=MAX_TTL_S)]


class FileCreateRequest(Strict):
    """`POST /v1/files`, beside its `file`."""

    purpose: Purpose
    expires_after: ExpiresAfter | None = None


class FileListQuery(BaseModel):
    """The query of `GET /v1/files`: text, so numbers are read from it; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = MAX_PAGE
    order: Literal["asc", "desc"] = "desc"
    purpose: str | None = None


def file_body(record: FileRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "object": "file",
        "bytes": record.size,
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "filename": record.filename,
        "purpose": record.purpose,
        "status": "processed",
        "status_details": None,
    }


def file_page(oldest_first: Sequence[FileRecord], query: FileListQuery) -> dict[str, Any]:
    """The page after the file `after`, in the order asked for."""
    records = list(oldest_first if query.order == "asc" else reversed(oldest_first))
    if query.after is not None:
        place = next((place for place, record in enumerate(records) if record.id == query.after), None)
        if place is None:
            raise RequestError("invalid", "'after' names no file of yours", param="after")
        records = records[place + 1 :]
    if query.purpose is not None:
        records = [record for record in records if record.purpose == query.purpose]
    page = records[: query.limit]
    return {
        "object": "list",
        "data": [file_body(record) for record in page],
        "first_id": page[0].id if page else None,
        "last_id": page[-1].id if page else None,
        "has_more": len(records) > len(page),
    }
