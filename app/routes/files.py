"""Owns `/v1/files`: media stored once and asked about often, in OpenAI's shapes.

Knows nothing of what is in a file. A stored file is named in a chat by `{"type": "file", "file": {"file_id": ID}}` or
by the URL `file-id://ID`, and on the simple door by the form field `file_id`. Files belong to the key that sent them.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse
from starlette.types import Receive, Scope, Send

from app.body import iterate_form_body
from app.file_schemas import FileCreateRequest, FileListQuery, file_body, file_page
from app.formfields import build_json
from app.multipart import read_form
from app.openapi import describe_form, describe_query
from app.state import get_owner, get_state
from runner.errors import RequestError

router = APIRouter(tags=["files"])


@router.post("/v1/files", openapi_extra=describe_form(FileCreateRequest, file="required"))
async def create_file(request: Request) -> dict[str, Any]:
    """Store a file for later requests, until it expires or is deleted."""
    state = get_state(request)
    with ExitStack() as resources:
        chunks = iterate_form_body(request, state.limits, max_file_bytes=state.policy.max_bytes)
        form = await read_form(request, chunks, state.store, resources, max_file_bytes=state.policy.max_bytes)
        body = FileCreateRequest.model_validate_json(build_json(form.fields, FileCreateRequest))
        if form.upload is None or form.upload.size == 0:
            raise RequestError("invalid", "'file' is required and must not be empty", param="file")
        record = state.shelf.add(
            form.upload,
            owner=get_owner(request),
            filename=form.filename,
            purpose=body.purpose,
            ttl_s=None if body.expires_after is None else body.expires_after.seconds,
        )
        resources.pop_all()  # the file outlives the request
        return file_body(record)


@router.get("/v1/files", openapi_extra=describe_query(FileListQuery))
async def list_files(request: Request) -> dict[str, Any]:
    """Your files, newest first unless `order=asc`."""
    query = FileListQuery.model_validate(dict(request.query_params))
    return file_page(get_state(request).shelf.list(get_owner(request)), query)


@router.get("/v1/files/{file_id}")
async def get_file(request: Request, file_id: str) -> dict[str, Any]:
    """What is known about a file."""
    return file_body(get_state(request).shelf.get(file_id, get_owner(request), param="file_id"))


@router.delete("/v1/files/{file_id}")
async def delete_file(request: Request, file_id: str) -> dict[str, Any]:
    """Delete a file. Requests that are reading it go on."""
    get_state(request).shelf.delete(file_id, get_owner(request), param="file_id")
    return {"id": file_id, "object": "file", "deleted": True}


@router.get("/v1/files/{file_id}/content", response_model=None)
async def get_file_content(request: Request, file_id: str) -> Response:
    """A file's bytes, as they came."""
    with ExitStack() as resources:
        held = get_state(request).shelf.hold(file_id, get_owner(request), param="file_id", resources=resources)
        return _HeldFile(held.path, resources.pop_all())


class _HeldFile(FileResponse):
    """Lets go of the file when the last byte is sent, or the client is gone. Browsers must save it, not show it."""

    def __init__(self, path: str, resources: ExitStack) -> None:
        headers = {"Content-Disposition": "attachment", "X-Content-Type-Options": "nosniff"}
        super().__init__(path, media_type="application/octet-stream", headers=headers)
        self._resources = resources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._resources:
            await super().__call__(scope, receive, send)
