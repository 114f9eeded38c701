"""Owns the texts of a session: embedded beside its windows, a few at a time.

Knows nothing of windows.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from app.embeddings import text_input
from app.realtime.config import output_options
from app.realtime.events import EmbedText, SessionKnobs
from app.realtime.output import spell_vector
from app.state import ServerState
from runner.embed_messages import Embed
from runner.errors import EngineError, RequestError

MAX_TEXTS = 8


class Texts:
    """send: an event's body; fail: an error and the id of the event it answers."""

    def __init__(
        self,
        state: ServerState,
        session_id: str,
        *,
        send: Callable[[dict[str, Any]], Awaitable[None]],
        fail: Callable[[Exception, str | None], Awaitable[None]],
    ) -> None:
        self._state, self._session_id, self._send, self._fail = state, session_id, send, fail
        self.tasks: set[asyncio.Task[None]] = set()
        self.count = 0

    def start(self, event: EmbedText, knobs: SessionKnobs) -> None:
        """Raises RequestError when too many are being embedded."""
        if len(self.tasks) >= MAX_TEXTS:
            message = f"{MAX_TEXTS} texts are being embedded; wait for one"
            raise RequestError("queue_full", message, code="too_many_texts")
        task = asyncio.create_task(self._embed(event, knobs))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _embed(self, event: EmbedText, knobs: SessionKnobs) -> None:
        output = knobs.output
        request = Embed(
            request_id=f"{self._session_id}-text-{uuid.uuid4().hex[:8]}",
            inputs=(text_input(event.text, event.instruction),),
            dimensions=output.dimensions if output is not None else None,
            normalize=output is None or output.normalize is not False,
        )
        try:
            stream = await self._state.client.embed(request)
            async for vector in stream:
                self.count += 1
                tokens = stream.usages[0].prompt_tokens
                encoding = output_options(knobs).encoding
                await self._send(
                    {
                        "type": "embedding.done",
                        "object": "embedding",
                        "item_id": event.event_id or request.request_id,
                        "index": None,
                        "embedding": spell_vector(vector.data, encoding),
                        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
                    }
                )
        except EngineError as error:
            await self._fail(error, event.event_id)
