"""Owns the measuring of one clip asked about in several ways: pruning methods and encoder modes, first tokens and whole
answers.

Knows nothing of how an answer is made: it asks an engine, looks at the clock, and reads the engine's own counters.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.own_engine import follow_answer
from runner.client import EngineClient
from runner.messages import EvsUsage, Generate
from runner.requests import ChatMessage, EvsOptions, MediaPart, SamplingParams, StoredFile, TextPart, VideoOptions

QUESTION = "Describe."


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way of looking at a clip."""

    name: str
    evs: EvsOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One first token. first_s: from the request on, with nothing cached; encoder_s: of that, the vision encoder."""

    prompt_tokens: int
    evs: EvsUsage
    first_s: float
    encoder_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A way and its asks, one a round. Times are medians; ratios are medians of what was measured in one round, for a
    machine's speed drifts from round to round."""

    way: Way
    asks: tuple[Ask, ...]

    @property
    def first_s(self) -> float:
        return statistics.median(ask.first_s for ask in self.asks)

    @property
    def encoder_s(self) -> float:
        return statistics.median(ask.encoder_s for ask in self.asks)

    @property
    def kept_share(self) -> float:
        return self.asks[0].evs.kept / self.asks[0].evs.cells

    def first_ratio(self, base: Measured) -> float:
        pairs = zip(self.asks, base.asks, strict=True)
        return statistics.median(ours.first_s / theirs.first_s for ours, theirs in pairs)

    def encoder_ratio(self, base: Measured) -> float:
        pairs = zip(self.asks, base.asks, strict=True)
        return statistics.median(ours.encoder_s / theirs.encoder_s for ours, theirs in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paced:
    """One answer: from the request to its first token, with nothing cached; then the mean time of each token more.
    share_in_graphs: of the steps that gave those."""

    first_s: float
    token_s: float
    share_in_graphs: float


async def pace_answer(client: EngineClient, clip: Path, evs: EvsOptions, video: VideoOptions, *, tokens: int) -> Paced:
    """Ask with nothing cached for an answer of so many tokens, at least 2."""
    client.drop_caches()
    before = await _decode_steps(client)
    started = time.perf_counter()
    stream = await client.generate(_request(clip, evs, video, tokens))
    times = [started]
    async for delta in follow_answer(stream):
        times += [time.perf_counter()] * len(delta.token_ids)
    in_graphs, steps = (now - then for now, then in zip(await _decode_steps(client), before, strict=True))
    return Paced(
        first_s=times[1] - started,
        token_s=(times[-1] - times[1]) / (tokens - 1),
        share_in_graphs=in_graphs / steps,
    )


async def _decode_steps(client: EngineClient) -> tuple[float, float]:
    """Steps so far that read no more of a prompt: those run as graphs, and all. Where there are no graphs at all,
    prompts' steps have no reason of their own and are among all."""
    counters = (await client.stats(uuid.uuid4().hex)).counters
    steps = {name: count for name, count in counters.items() if name.startswith("evs:steps_total{")}
    in_graphs = sum(count for name, count in steps.items() if 'mode="graph"' in name)
    return in_graphs, sum(count for name, count in steps.items() if 'reason="prefill"' not in name)


def _request(clip: Path, evs: EvsOptions, video: VideoOptions, tokens: int) -> Generate:
    part = MediaPart(kind="video", source=StoredFile(path=str(clip.resolve())), video=video)
    return Generate(
        request_id=uuid.uuid4().hex,
        chat=(ChatMessage(role="user", parts=(part, TextPart(text=QUESTION))),),
        sampling=SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True),
        evs=evs,
    )


async def ask_first_token(client: EngineClient, clip: Path, evs: EvsOptions, video: VideoOptions) -> Ask:
    """Ask with nothing cached, and stop after one token. Raises RequestError as any request does."""
    request = _request(clip, evs, video, 1)
    client.drop_caches()
    before_s = await _encoder_s(client)
    started = time.perf_counter()
    stream = await client.generate(request)
    async for _ in follow_answer(stream):
        pass
    first_s = time.perf_counter() - started
    usage = stream.accepted.usage
    assert usage.evs is not None
    encoder_s = await _encoder_s(client) - before_s
    return Ask(prompt_tokens=usage.prompt_tokens, evs=usage.evs, first_s=first_s, encoder_s=encoder_s)


async def measure_ways(
    client: EngineClient, clip: Path, ways: Sequence[Way], *, video: VideoOptions, rounds: int
) -> list[Measured]:
    """Each way once a round, one after the other; a first round, which pays for what is done once, is not counted."""
    found: dict[str, list[Ask]] = {way.name: [] for way in ways}
    for number in range(rounds + 1):
        for way in ways:
            ask = await ask_first_token(client, clip, way.evs, video)
            if number:
                found[way.name].append(ask)
    return [Measured(way=way, asks=tuple(found[way.name])) for way in ways]


async def _encoder_s(client: EngineClient) -> float:
    stats = await client.stats(uuid.uuid4().hex)
    return stats.counters["evs:encoder_seconds_total"]
