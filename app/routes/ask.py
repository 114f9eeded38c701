"""Owns `POST /v1/videos/ask`, the simple door: one file, one question, one answer.

Knows nothing of how forms are parsed or answers are made. For curl and HTML forms:

    curl -F file=@clip.mp4 -F prompt='What happens?' localhost:8000/v1/videos/ask

The reply is `{"id", "object": "video.answer", "created", "model", "answer", "finish_reason", "usage"}`; with
`stream=true` it is the same events as from the chat route.
"""

from __future__ import annotations

from contextlib import ExitStack

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from app.body import BodyLimits, iterate_body
from app.convert import convert_ask, convert_evs, convert_sampling, convert_text_options
from app.formfields import build_json
from app.generate import Reply, collect, stream_events, submit, usage_events
from app.hangup import run_while_connected
from app.multipart import MAX_PARTS, MAX_TEXT_BYTES, Form, read_form
from app.openapi import describe_form
from app.replies import answer_body
from app.routes.chat import make_head
from app.schemas import AskRequest
from app.sse import EventStream
from app.state import ServerState, get_state
from runner.errors import RequestError
from runner.messages import Generate
from runner.requests import StoredFile

FORM_OVERHEAD_BYTES = MAX_PARTS * MAX_TEXT_BYTES

router = APIRouter(tags=["videos"])


@router.post("/v1/videos/ask", openapi_extra=describe_form(AskRequest), response_model=None)
async def ask_about_video(request: Request) -> Response:
    """Upload a video and ask about it."""
    state = get_state(request)
    with ExitStack() as resources:
        form = await _read_upload(request, state, resources)
        body = AskRequest.model_validate_json(build_json(form.fields, AskRequest))
        reply = Reply(
            head=make_head(request, body, state),
            form="events" if body.stream else "body",
            text=convert_text_options(body, logprobs=None),
            usage_events=usage_events(body.stream_options),
        )
        generate = _make_generate(body, form, reply, state)
        generation = await run_while_connected(request, submit(state, generate, reply, resources))
        if reply.form == "events":
            return EventStream(stream_events(generation), resources.pop_all())
        choices = await run_while_connected(request, collect(generation))
        return JSONResponse(answer_body(reply.head, choices[0], generation.usage))


async def _read_upload(request: Request, state: ServerState, resources: ExitStack) -> Form:
    max_file_bytes = state.policy.max_bytes
    limits = BodyLimits(max_bytes=max_file_bytes + FORM_OVERHEAD_BYTES, idle_s=state.limits.idle_s)
    state.metrics.uploads.inc()
    resources.callback(state.metrics.uploads.dec)
    chunks = iterate_body(request, limits)
    form = await read_form(request, chunks, state.store, resources, max_file_bytes=max_file_bytes)
    if form.upload is None:
        raise RequestError("invalid", "'file' is required: the video, as -F file=@clip.mp4", param="file")
    if form.upload.size == 0:
        raise RequestError("invalid", "the file is empty", param="file")
    return form


def _make_generate(body: AskRequest, form: Form, reply: Reply, state: ServerState) -> Generate:
    assert form.upload is not None
    return Generate(
        request_id=reply.head.id,
        chat=convert_ask(body, StoredFile(path=str(form.upload.path))),
        sampling=convert_sampling(body, top_logprobs=None, vocab_size=state.client.info.vocab_size),
        evs=convert_evs(body.evs),
    )
