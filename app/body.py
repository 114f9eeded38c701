"""Owns the reading of request bodies: counted while read, given up on when they stall, parsed off the event loop.

Knows nothing of what a body means. Content-Length is a client's claim and is used only to refuse early.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from app.errors import ApiError, ClientGoneError
from runner.errors import RequestError

FORM_OVERHEAD_BYTES = 64 << 20  # all fields of a form and its own words
THREAD_BYTES = 256 << 10  # parsing less than this is quicker than asking a thread

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, kw_only=True)
class BodyLimits:
    max_bytes: int
    idle_s: float


async def iterate_body(request: Request, limits: BodyLimits) -> AsyncIterator[bytes]:
    """The body's chunks: at most `max_bytes` in all, each chunk within `idle_s` of the one before."""
    max_bytes, idle_s = limits.max_bytes, limits.idle_s
    _refuse_early(request, max_bytes)
    read = 0
    chunks = aiter(request.stream())
    while True:
        try:
            chunk = await asyncio.wait_for(anext(chunks), idle_s)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise ApiError(408, f"no data came for {idle_s:g} s", headers={"Connection": "close"}) from None
        except ClientDisconnect:
            raise ClientGoneError from None
        read += len(chunk)
        if read > max_bytes:
            raise _too_large(max_bytes)
        yield chunk


def iterate_form_body(request: Request, limits: BodyLimits, *, max_file_bytes: int) -> AsyncIterator[bytes]:
    """A form's chunks: its file may be as large as files may be, and its fields add little to that."""
    return iterate_body(request, replace(limits, max_bytes=max_file_bytes + FORM_OVERHEAD_BYTES))


async def read_json(request: Request, model: type[Model], limits: BodyLimits) -> Model:
    """The body as `model`, strictly. Other content types are refused: a web page could send them unasked."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise RequestError("unsupported_media", "send JSON with the header Content-Type: application/json")
    body = bytearray()
    async for chunk in iterate_body(request, limits):
        body += chunk
    if len(body) < THREAD_BYTES:
        return model.model_validate_json(body)
    return await asyncio.to_thread(model.model_validate_json, body)


def _refuse_early(request: Request, max_bytes: int) -> None:
    claimed = request.headers.get("content-length", "")
    if claimed.isdecimal() and int(claimed) > max_bytes:
        raise _too_large(max_bytes)


def _too_large(max_bytes: int) -> RequestError:
    return RequestError("too_large", f"the request body is larger than the limit of {max_bytes} bytes")
