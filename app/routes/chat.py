"""Owns `POST /v1/chat/completions` and its `/render` twin.

Knows nothing of how media is read or answers are made; it puts the steps in order.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from app.body import read_json
from app.convert import check_media_count, convert_chat, convert_evs, convert_sampling, convert_text_options
from app.deadline import Deadline
from app.gather import gather_media
from app.generate import Generation, Reply, collect, stream_events, submit, usage_events
from app.hangup import run_while_connected
from app.openapi import describe_body
from app.replies import Head, completion_body, rendered_body
from app.schemas import ChatRequest, RenderRequest, SamplingFields
from app.sse import EventStream
from app.state import ServerState, get_owner, get_state
from runner.messages import Generate, Render
from runner.requests import ChatMessage

router = APIRouter(tags=["chat"])


@router.post("/v1/chat/completions", openapi_extra=describe_body(ChatRequest), response_model=None)
async def create_chat_completion(request: Request) -> Response:
    """Answer a chat that may hold images and videos; `stream: true` sends server-sent events."""
    with ExitStack() as resources:
        generation = await _start(request, resources)
        if generation.reply.form == "events":
            return EventStream(stream_events(generation), resources.pop_all())
        choices = await run_while_connected(request, collect(generation))
        reply = generation.reply
        return JSONResponse(completion_body(reply.head, choices, generation.usage, logprobs=reply.text.logprobs))


@router.post("/v1/chat/completions/render", openapi_extra=describe_body(RenderRequest), response_model=None)
async def render_chat(request: Request) -> Response:
    """What the model would see: token ids, positions, sampled times, kept cells. Nothing is generated."""
    state = get_state(request)
    body = await read_json(request, RenderRequest, state.limits)
    head = make_head(request, body, state)
    with ExitStack() as resources:
        call = Call(state=state, owner=get_owner(request), resources=resources)
        return JSONResponse(await run_while_connected(request, _render(body, head, call)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Call:
    """What one request is made with: the server, whose it is, and what it holds until it ends."""

    state: ServerState
    owner: str
    resources: ExitStack


def make_head(request: Request, body: SamplingFields, state: ServerState) -> Head:
    model = state.check_model(body.model)
    return Head(id=f"chatcmpl-{request.state.request_id}", created=int(time.time()), model=model)


async def _start(request: Request, resources: ExitStack) -> Generation:
    """When this returns, nothing in memory holds the body or its media any more."""
    state = get_state(request)
    body = await read_json(request, ChatRequest, state.limits)
    reply = Reply(
        head=make_head(request, body, state),
        form="events" if body.stream else "body",
        text=convert_text_options(body, logprobs=body.logprobs, token_ids=body.return_token_ids),
        usage_events=usage_events(body.stream_options),
        deadline=Deadline.after(body.timeout_s),
    )
    call = Call(state=state, owner=get_owner(request), resources=resources)
    return await run_while_connected(request, reply.deadline.keep(_submit(body, reply, call)))


async def _submit(body: ChatRequest, reply: Reply, call: Call) -> Generation:
    vocab_size = call.state.client.info.vocab_size
    top_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    sampling = convert_sampling(body, top_logprobs=top_logprobs, vocab_size=vocab_size)  # before media is fetched
    generate = Generate(
        request_id=reply.head.id,
        chat=await _convert(body, call),
        sampling=sampling,
        evs=convert_evs(body.evs),
        n=body.n or 1,
        priority=body.priority or 0,
    )
    return await submit(call.state, generate, reply, call.resources)


async def _render(body: RenderRequest, head: Head, call: Call) -> dict[str, Any]:
    call.state.check_serving()
    request = Render(
        request_id=head.id,
        chat=await _convert(body, call),
        evs=convert_evs(body.evs),
        include_frames="frames" in (body.include or ()),
    )
    return rendered_body(await call.state.client.render(request))


async def _convert(body: ChatRequest, call: Call) -> tuple[ChatMessage, ...]:
    state = call.state
    check_media_count(body, state.settings.limit_media_items)
    ready = await gather_media(body, state.fetcher, state.shelf, owner=call.owner, resources=call.resources)
    return await asyncio.to_thread(convert_chat, body, state.policy, ready)
