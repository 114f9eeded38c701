"""Owns the step from an embedding request to the engine's plain data, and what comes back of windows.

Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack
from typing import Any

from app.convert import check_media_count, convert_chat, convert_evs
from app.embedding_schemas import EmbeddingRequest, WindowKnobs
from app.errors import ApiError, describe_error, error_body
from app.gather import gather_media
from app.log import log_event, log_failure
from app.realtime.output import OutputOptions, settings_body, window_body
from app.schemas import ChatRequest
from app.sse import DONE, encode_event
from app.state import ServerState
from runner.embed_messages import ChatInput, Embed, EmbedInput, TokensInput
from runner.errors import EngineError, RequestError
from runner.requests import ChatMessage, MediaPart, MediaSource, TextPart
from runner.stream_client import EngineStream, StreamEventOut, WindowVector
from runner.stream_messages import OpenStream, StreamOpened, WindowOptions


async def make_embed(
    body: EmbeddingRequest, request_id: str, state: ServerState, owner: str, resources: ExitStack
) -> Embed:
    """`input` or `messages` as the engine takes them; media is fetched or held until `resources` close."""
    return Embed(
        request_id=request_id,
        inputs=await _convert_inputs(body, state, owner, resources),
        evs=convert_evs(body.evs),
        dimensions=body.dimensions,
        normalize=body.normalize is not False,
        priority=body.priority or 0,
    )


async def make_stream(
    body: EmbeddingRequest, request_id: str, state: ServerState, owner: str, resources: ExitStack
) -> OpenStream:
    assert body.video is not None
    return OpenStream(
        request_id=request_id,
        source=await _find_clip(body, state, owner, resources),
        window=convert_window(body.window),
        evs=convert_evs(body.evs),
        gate="changed" if body.gate_windows else "all",
        dimensions=body.dimensions,
        normalize=body.normalize is not False,
        instruction=body.instruction,
        priority=body.priority or 0,
    )


def convert_window(knobs: WindowKnobs | None) -> WindowOptions:
    return WindowOptions() if knobs is None else WindowOptions(**knobs.model_dump())


def text_input(text: str, instruction: str | None) -> ChatInput:
    """As the checkpoint's own tools write a text: a user's turn, after a system's where there is an instruction."""
    turn = ChatMessage(role="user", parts=(TextPart(text=text),))
    return ChatInput(chat=_instructed((turn,), instruction))


async def _convert_inputs(
    body: EmbeddingRequest, state: ServerState, owner: str, resources: ExitStack
) -> tuple[EmbedInput, ...]:
    if body.messages is None:
        return tuple(
            text_input(one, body.instruction) if isinstance(one, str) else TokensInput(token_ids=tuple(one))
            for one in body.input or ()
        )
    given = {name: getattr(body, name) for name in ("messages", "media_io_kwargs", "mm_processor_kwargs")}
    chat = await _convert_chat(ChatRequest(**given), state, owner, resources)
    if body.instruction is not None and chat[0].role == "system":
        raise RequestError("invalid", "messages begin with a system turn; leave instruction out", param="instruction")
    return (ChatInput(chat=_instructed(chat, body.instruction)),)


def _instructed(chat: tuple[ChatMessage, ...], instruction: str | None) -> tuple[ChatMessage, ...]:
    if instruction is None:
        return chat
    return (ChatMessage(role="system", parts=(TextPart(text=instruction),)), *chat)


async def _find_clip(body: EmbeddingRequest, state: ServerState, owner: str, resources: ExitStack) -> MediaSource:
    """The clip's bytes by the same ways as a clip in a chat."""
    assert body.video is not None
    part = {"type": "video_url", "video_url": body.video.model_dump(exclude_none=True)}
    chat = ChatRequest.model_validate({"messages": [{"role": "user", "content": [part]}]})
    try:
        media = (await _convert_chat(chat, state, owner, resources))[0].parts[0]
    except RequestError as error:
        raise RequestError(error.kind, error.message, param="video.url", code=error.code) from error
    assert isinstance(media, MediaPart)
    return media.source


async def _convert_chat(
    chat: ChatRequest, state: ServerState, owner: str, resources: ExitStack
) -> tuple[ChatMessage, ...]:
    check_media_count(chat, state.settings.limit_media_items)
    ready = await gather_media(chat, state.fetcher, state.shelf, owner=owner, resources=resources)
    return await asyncio.to_thread(convert_chat, chat, state.policy, ready)


# --------------------------------------------------------------------------------------------- windows over a clip


class ClipWindows:
    """An opened stream over a clip: its first frame is decoded, so what was wrong with the request is known."""

    def __init__(self, opened: StreamOpened, events: AsyncIterator[StreamEventOut], output: OutputOptions) -> None:
        self.opened = opened
        self._events, self._output = events, output
        self.prompt_tokens = 0

    async def bodies(self) -> AsyncGenerator[dict[str, Any], None]:
        async for event in self._events:
            if isinstance(event, WindowVector):
                self.prompt_tokens += event.window.prompt_tokens
                yield window_body(event, self._output)

    @property
    def usage(self) -> dict[str, Any]:
        return {"prompt_tokens": self.prompt_tokens, "total_tokens": self.prompt_tokens}


async def open_windows(stream: EngineStream, output: OutputOptions) -> ClipWindows:
    """Wait for the first frame. Raises RequestError."""
    events = aiter(stream)
    async for event in events:
        if isinstance(event, StreamOpened):
            return ClipWindows(event, events, output)
    raise RequestError("undecodable", "nothing in the clip can be shown", param="video.url")


async def stream_windows(windows: ClipWindows, model: str, request_id: str) -> AsyncGenerator[bytes, None]:
    """Server-sent events: one a window while the clip is still being decoded, then what it came to."""
    bodies = windows.bodies()
    try:
        yield encode_event({"type": "session.created", "session": {"model": model, **settings_body(windows.opened)}})
        async for body in bodies:
            yield encode_event(body)
    except (EngineError, ApiError) as error:
        log_event("stream_failed", id=request_id, error=type(error).__name__)
        yield encode_event({"type": "error", **error_body(describe_error(error))})
        return
    except Exception as error:
        log_failure("stream_failed", error, id=request_id)
        yield encode_event({"type": "error", **error_body(describe_error(error))})
        return
    finally:
        await bodies.aclose()
    yield encode_event({"type": "session.stats", "usage": windows.usage})
    yield DONE
