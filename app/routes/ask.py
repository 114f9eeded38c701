"""Owns `POST /v1/videos/ask`, the simple door: one file, one question, one answer.

Knows nothing of how forms are parsed or answers are made. For curl and HTML forms:

    curl -F file=@clip.mp4 -F prompt='What happens?' localhost:8000/v1/videos/ask

The reply is `{"id", "object": "video.answer", "created", "model", "answer", "finish_reason", "usage"}`; with
`stream=true` it is the same events as from the chat route.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from app.body import iterate_form_body
from app.convert import convert_ask, convert_evs, convert_sampling, convert_text_options
from app.deadline import Deadline
from app.formfields import build_json
from app.generate import Reply, collect, stream_events, submit, usage_events
from app.hangup import run_while_connected
from app.multipart import Form, read_form
from app.openapi import describe_form
from app.replies import answer_body
from app.routes.chat import make_head
from app.schemas import AskRequest
from app.sse import EventStream
from app.state import ServerState, get_owner, get_state
from runner.errors import RequestError
from runner.messages import Generate
from runner.requests import StoredFile

MEDIA_KINDS = frozenset({"too_large", "unsupported_media", "undecodable", "deadline"})

router = APIRouter(tags=["videos"])


@router.post("/v1/videos/ask", openapi_extra=describe_form(AskRequest, file="optional"), response_model=None)
async def ask_about_video(request: Request) -> Response:
    """Upload a video, or name a stored one by `file_id`, and ask about it."""
    state = get_state(request)
    with ExitStack() as resources:
        form = await read_upload(request, state, resources)
        body = AskRequest.model_validate_json(build_json(form.fields, AskRequest))
        reply = Reply(
            head=make_head(request, body, state),
            form="events" if body.stream else "body",
            text=convert_text_options(body, logprobs=None),
            usage_events=usage_events(body.stream_options),
            deadline=Deadline.after(body.timeout_s),
        )
        source = find_clip(form, body.file_id, request, resources)
        generate = _make_generate(body, source, reply, state)
        with naming_clip("file" if body.file_id is None else "file_id"):
            submitting = reply.deadline.keep(submit(state, generate, reply, resources))
            generation = await run_while_connected(request, submitting)
        if reply.form == "events":
            return EventStream(stream_events(generation), resources.pop_all())
        choices = await run_while_connected(request, collect(generation))
        return JSONResponse(answer_body(reply.head, choices[0], generation.usage))


async def read_upload(request: Request, state: ServerState, resources: ExitStack) -> Form:
    state.metrics.uploads.inc()
    resources.callback(state.metrics.uploads.dec)
    chunks = iterate_form_body(request, state.limits, max_file_bytes=state.policy.max_bytes)
    return await read_form(request, chunks, state.store, resources, max_file_bytes=state.policy.max_bytes)


def find_clip(form: Form, file_id: str | None, request: Request, resources: ExitStack) -> StoredFile:
    if file_id is not None:
        if form.upload is not None:
            raise RequestError("invalid", "give either 'file' or 'file_id'", param="file_id")
        return get_state(request).shelf.hold(file_id, get_owner(request), param="file_id", resources=resources)
    if form.upload is None:
        raise RequestError("invalid", "'file' is required: the video, as -F file=@clip.mp4", param="file")
    if form.upload.size == 0:
        raise RequestError("invalid", "the file is empty", param="file")
    return StoredFile(path=str(form.upload.path))


@contextmanager
def naming_clip(clip_field: str) -> Iterator[None]:
    """The engine knows only `messages`, of which a form has none: its media is the clip, its text the prompt."""
    try:
        yield
    except RequestError as error:
        if error.param != "messages":
            raise
        param = clip_field if error.kind in MEDIA_KINDS else None
        raise RequestError(error.kind, error.message, param=param, code=error.code) from None


def _make_generate(body: AskRequest, source: StoredFile, reply: Reply, state: ServerState) -> Generate:
    return Generate(
        request_id=reply.head.id,
        chat=convert_ask(body, source),
        sampling=convert_sampling(body, top_logprobs=None, vocab_size=state.client.info.vocab_size),
        evs=convert_evs(body.evs),
    )
