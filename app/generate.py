"""Owns one generation from submission to the last byte: the engine's stream in, a JSON body or SSE events out.

Knows nothing of how the request was written (chat or form) or of the model. Everything a user can get wrong has failed
when `submit` returns; what goes wrong later is an error event, and no `[DONE]` follows it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

from app.answer import Answer, Piece, TextOptions
from app.deadline import NO_DEADLINE, Deadline
from app.errors import INTERNAL_MESSAGE, ApiError, describe_error, error_body
from app.log import log_event, log_failure
from app.metrics import Metrics
from app.replies import Head, chunk_body, piece_choice, role_choice, usage_body
from app.schemas import StreamOptions
from app.sse import DONE, encode_event
from app.state import ServerState
from runner.client import GenerationStream
from runner.errors import EngineError, RequestError
from runner.messages import Delta, Generate, PromptUsage

UsageEvents = Literal["none", "last", "every"]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """How to answer. It outlives the request's media, which would otherwise stay in memory with it."""

    head: Head
    form: Literal["body", "events"]
    text: TextOptions
    usage_events: UsageEvents = "none"
    deadline: Deadline = NO_DEADLINE


class Generation:
    """A request that the engine has accepted. `pieces` may be iterated once."""

    def __init__(self, reply: Reply, n: int, *, state: ServerState, stream: GenerationStream, began: float) -> None:
        self.reply = reply
        self._stream = stream
        self._timer = _Timer(state.metrics, began)
        self._answers = [Answer(state.vocabulary, reply.text) for _ in range(n)]
        self._cached_tokens = 0

    @property
    def usage(self) -> dict[str, Any]:
        prompt: PromptUsage = self._stream.accepted.usage
        tokens = sum(answer.tokens for answer in self._answers)
        return usage_body(prompt, tokens, cached_tokens=self._cached_tokens)

    async def pieces(self) -> AsyncGenerator[tuple[int, Piece], None]:
        deltas: AsyncIterator[Delta] = aiter(self._stream)
        try:
            while (delta := await self.reply.deadline.keep(anext(deltas, None))) is not None:
                answer = self._answers[delta.index]
                if answer.is_finished:
                    continue  # a stop string ended it; this is the engine's echo
                if delta.finish_reason in ("error", "abort"):
                    raise _explain_end(delta)
                if delta.index == 0:  # the prompt is billed once; the others may have found what the first computed
                    self._cached_tokens = delta.cached_tokens
                self._timer.note_token()
                piece = answer.feed(delta)
                if piece.finish_reason is not None:
                    self._timer.note_end(piece, answer.tokens)
                    if delta.finish_reason is None:
                        self._stream.end(delta.index)
                yield delta.index, piece
                if all(answer.is_finished for answer in self._answers):
                    return
        finally:
            if isinstance(deltas, AsyncGenerator):
                await deltas.aclose()
            self._stream.close()


async def submit(state: ServerState, request: Generate, reply: Reply, resources: ExitStack) -> Generation:
    """Wait until the engine has accepted; from then on `resources` frees what the request holds there."""
    state.check_serving()
    began = time.perf_counter()
    stream = await state.client.generate(request)
    resources.callback(stream.close)
    return Generation(reply, request.n, state=state, stream=stream, began=began)


async def collect(generation: Generation) -> list[list[Piece]]:
    """All pieces of each answer; the last piece of each says how it ended."""
    choices: dict[int, list[Piece]] = {}
    async for index, piece in generation.pieces():
        choices.setdefault(index, []).append(piece)
    collected = [pieces for _, pieces in sorted(choices.items())]
    assert collected and all(pieces[-1].finish_reason is not None for pieces in collected)
    return collected


async def stream_events(generation: Generation) -> AsyncGenerator[bytes, None]:
    """OpenAI's chunks. The first event of an answer names the role; with usage asked for, the last has no choices."""
    begun: set[int] = set()
    pieces = generation.pieces()
    try:
        async for index, piece in pieces:
            choices = [] if index in begun else [role_choice(index)]
            begun.add(index)
            if not piece.is_empty:
                choices.append(piece_choice(index, piece))
            if choices:
                yield b"".join(encode_event(_add_usage(generation, [choice])) for choice in choices)
    except (EngineError, ApiError) as error:
        log_event("stream_failed", id=generation.reply.head.id, error=type(error).__name__)
        yield encode_event(error_body(describe_error(error)))
        return
    except Exception as error:
        log_failure("stream_failed", error, id=generation.reply.head.id)
        yield encode_event(error_body(describe_error(error)))
        return
    finally:
        await pieces.aclose()
    if generation.reply.usage_events != "none":
        yield encode_event(chunk_body(generation.reply.head, []) | {"usage": generation.usage})
    yield DONE


def _add_usage(generation: Generation, choices: list[dict[str, Any]]) -> dict[str, Any]:
    body = chunk_body(generation.reply.head, choices)
    match generation.reply.usage_events:
        case "none":
            return body
        case "last":
            return body | {"usage": None}
        case "every":
            return body | {"usage": generation.usage}


def _explain_end(delta: Delta) -> Exception:
    if delta.finish_reason == "abort":
        return RequestError("unavailable", "the server is shutting down; send the request again later")
    log_event("engine_failed_request", id=delta.request_id, index=delta.index)
    return ApiError(500, INTERNAL_MESSAGE, "server_error", None, "internal")


class _Timer:
    """Times of one request for the metrics."""

    def __init__(self, metrics: Metrics, began: float) -> None:
        self._metrics = metrics
        self._began = began
        self._first: float | None = None

    def note_token(self) -> None:
        if self._first is None:
            self._first = time.perf_counter()
            self._metrics.first_token_s.observe(self._first - self._began)

    def note_end(self, piece: Piece, tokens: int) -> None:
        now = time.perf_counter()
        self._metrics.answers.labels(str(piece.finish_reason)).inc()
        self._metrics.latency_s.observe(now - self._began)
        if self._first is not None and tokens > 1:
            self._metrics.token_s.observe((now - self._first) / (tokens - 1))


def usage_events(options: StreamOptions | None) -> UsageEvents:
    if options is None or not options.include_usage:
        return "none"
    return "every" if options.continuous_usage_stats else "last"
