"""Owns the asking of an engine in this process: many questions about many clips at once, each in its own request. Knows
nothing of what the answers should be.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from app.answer import Answer, TextOptions
from app.detokenize import Vocabulary
from app.embeddings import text_input
from runner.client import EngineClient, start_engine
from runner.config import EngineConfig
from runner.embed_messages import ChatInput, Embed, EmbedInput
from runner.errors import EngineError
from runner.messages import EvsUsage, Generate
from runner.requests import ChatMessage, EvsOptions, MediaPart, SamplingParams, StoredFile, TextPart

AT_ONCE = 64
Note = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One question about one clip, looked at in one way."""

    clip: Path
    text: str
    evs: EvsOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """text: the whole answer. evs: what was looked at."""

    text: str
    evs: EvsUsage


@asynccontextmanager
async def engine_of(folder: Path, *, dtype: str, threads: int | None) -> AsyncIterator[EngineClient]:
    """The real engine on a thread of this process, as `evs ask` has it."""
    config = EngineConfig(
        model=str(folder),
        served_name="demo",
        dtype=dtype,  # type: ignore[arg-type]
        threads=threads,
        max_waiting=4 * AT_ONCE,
    )
    client = await start_engine(config, where="thread")
    try:
        yield client
    finally:
        await client.close(grace_s=0.0)


async def ask_all(client: EngineClient, asks: Sequence[Ask], note: Note) -> list[Said]:
    """Greedy answers, in the order of the asks."""
    vocabulary, places = Vocabulary(client.info.tokenizer_json), asyncio.Semaphore(AT_ONCE)

    async def one(ask: Ask) -> Said:
        async with places:
            said = await _ask(client, vocabulary, ask)
        note()
        return said

    return list(await asyncio.gather(*(one(ask) for ask in asks)))


async def _ask(client: EngineClient, vocabulary: Vocabulary, ask: Ask) -> Said:
    turn = ChatMessage(role="user", parts=(_clip_part(ask.clip), TextPart(text=ask.text)))
    stream = await client.generate(
        Generate(request_id=uuid.uuid4().hex, chat=(turn,), sampling=SamplingParams(temperature=0.0), evs=ask.evs)
    )
    answer, pieces = Answer(vocabulary, TextOptions()), []
    async for delta in stream:
        if delta.finish_reason in ("error", "abort"):
            raise EngineError(f"the engine failed on {ask.clip.name}: {ask.text}")
        pieces.append(answer.feed(delta).text)
    usage = stream.accepted.usage.evs
    assert usage is not None
    return Said(text="".join(pieces).strip(), evs=usage)


def _clip_part(path: Path) -> MediaPart:
    return MediaPart(kind="video", source=StoredFile(path=str(path.resolve())))


async def embed_clips(client: EngineClient, clips: Sequence[Path], evs: EvsOptions) -> npt.NDArray[np.float32]:
    """(N, D) unit vectors of clips, pooled as the server pools them."""
    turns = [ChatMessage(role="user", parts=(_clip_part(clip),)) for clip in clips]
    return await _embed(client, [ChatInput(chat=(turn,)) for turn in turns], evs)


async def embed_texts(client: EngineClient, texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """(N, D) unit vectors of texts."""
    return await _embed(client, [text_input(text, None) for text in texts], EvsOptions())


async def _embed(client: EngineClient, inputs: Sequence[EmbedInput], evs: EvsOptions) -> npt.NDArray[np.float32]:
    request = Embed(request_id=uuid.uuid4().hex, inputs=tuple(inputs), evs=evs)
    found = {vector.index: np.frombuffer(vector.data, dtype="<f4") async for vector in await client.embed(request)}
    return np.stack([found[place] for place in range(len(inputs))])
