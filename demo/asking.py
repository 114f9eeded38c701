"""Owns the asking of an engine in this process: many questions about many clips at once, each in its own request. Knows
nothing of what the answers should be.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from app.answer import Answer, TextOptions
from app.detokenize import Vocabulary
from app.embeddings import text_input
from app.own_engine import follow_answer
from app.settings import Settings
from runner.client import EngineClient
from runner.embed_messages import ChatInput, Embed, EmbedInput
from runner.messages import EvsUsage, Generate
from runner.requests import ChatMessage, EvsOptions, MediaPart, SamplingParams, StoredFile, TextPart

AT_ONCE = 64
Note = Callable[[], None]
Dtype = Literal["auto", "float32", "bfloat16"]


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


def settings_of(folder: Path, *, dtype: Dtype, threads: int | None) -> Settings:
    """As served, with room for all that is asked at once."""
    return Settings(model=str(folder), dtype=dtype, threads=threads, max_waiting=4 * AT_ONCE)


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
    answer = Answer(vocabulary, TextOptions())
    text = "".join([answer.feed(delta).text async for delta in follow_answer(stream)])
    usage = stream.accepted.usage.evs
    assert usage is not None
    return Said(text=text.strip(), evs=usage)


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
