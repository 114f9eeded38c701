"""Owns `POST /v1/embeddings`: vectors of texts, of a chat with media, or of each window of a clip.

Knows nothing of how they are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from app.body import read_json
from app.embedding_schemas import EmbeddingRequest
from app.embeddings import ClipWindows, make_embed, make_stream, open_windows, stream_windows
from app.hangup import run_while_connected
from app.openapi import describe_body
from app.realtime.output import OutputOptions, embedding_body, settings_body, usages_body
from app.sse import EventStream
from app.state import ServerState, get_owner, get_state
from runner.errors import RequestError

router = APIRouter(tags=["embeddings"])


@router.post("/v1/embeddings", openapi_extra=describe_body(EmbeddingRequest), response_model=None)
async def create_embeddings(request: Request) -> Response:
    """One vector for each of `input`, one for `messages`, or one for each `window` of `video`."""
    state = get_state(request)
    body = await read_json(request, EmbeddingRequest, state.limits)
    model = state.check_model(body.model)
    state.check_serving()
    request_id = f"embd-{request.state.request_id}"
    with ExitStack() as resources:
        if body.video is None:
            with _naming_input(body):
                made = await run_while_connected(request, _embed(body, request_id, request, resources))
            return JSONResponse({**made, "model": model})
        with _naming_input(body):
            windows = await run_while_connected(request, _open(body, request_id, request, resources))
        if body.stream:
            return EventStream(stream_windows(windows, model, request_id), resources.pop_all())
        data = await run_while_connected(request, _collect(windows))
        settings = settings_body(windows.opened)
        return JSONResponse({"object": "list", "data": data, "model": model, "usage": windows.usage, **settings})


async def _embed(body: EmbeddingRequest, request_id: str, request: Request, resources: ExitStack) -> dict[str, Any]:
    state: ServerState = get_state(request)
    stream = await state.client.embed(await make_embed(body, request_id, state, get_owner(request), resources))
    resources.callback(stream.close)
    encoding = body.encoding_format or "float"
    data = [embedding_body(vector.index, vector.data, encoding) async for vector in stream]
    data.sort(key=lambda entry: int(entry["index"]))
    return {"object": "list", "data": data, "usage": usages_body(stream.usages)}


async def _open(body: EmbeddingRequest, request_id: str, request: Request, resources: ExitStack) -> ClipWindows:
    state = get_state(request)
    stream = state.client.open_stream(await make_stream(body, request_id, state, get_owner(request), resources))
    resources.callback(stream.close)
    return await open_windows(stream, OutputOptions(encoding=body.encoding_format or "float"))


async def _collect(windows: ClipWindows) -> list[dict[str, Any]]:
    return [body async for body in windows.bodies()]


@contextmanager
def _naming_input(body: EmbeddingRequest) -> Iterator[None]:
    """The engine names `messages`, of which the other two forms have none."""
    try:
        yield
    except RequestError as error:
        if error.param != "messages" or body.messages is not None:
            raise
        param = "input" if body.video is None else "video.url"
        raise RequestError(error.kind, error.message, param=param, code=error.code) from None
