"""Owns `evs ask`: one question about one clip, the engine in this process, the answer on stdout.

Knows nothing of HTTP. Everything but the answer goes to stderr, so that the answer can be piped.
"""

from __future__ import annotations

import time
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from app.answer import Answer, TextOptions
from app.detokenize import Vocabulary
from app.look import Look
from app.model_path import note_demo
from app.overlay import check_output, draw
from app.own_engine import follow_answer, own_engine
from app.progress import note_progress, show_phases
from app.settings import Settings
from runner.client import EngineClient, GenerationStream
from runner.messages import Generate, PromptUsage
from runner.requests import ChatMessage, MediaPart, SamplingParams, StoredFile, TextPart


@dataclass(frozen=True, kw_only=True)
class AskOptions:
    clip: Path
    prompt: str
    max_tokens: int | None = None
    temperature: float | None = None
    look: Look
    overlay: Path | None = None


async def ask_once(settings: Settings, options: AskOptions) -> None:
    if options.overlay is not None:
        check_output(options.overlay, "overlay")
    console = Console(stderr=True)
    note_demo(settings.model, console)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(own_engine(settings, console))
        began = time.perf_counter()
        console.print(f"{options.clip.name}: {options.prompt}", style="dim", markup=False, highlight=False)
        with show_phases(console) as bars:
            bars.update("decode", 0, 0)
            stream = await client.generate(_make_request(options), progress=note_progress(bars))
            stack.callback(stream.close)
        await _print_answer(client, stream, console, began)
        if options.overlay is not None:
            await draw(client, options.clip, options.overlay, options.look, console)


async def _print_answer(client: EngineClient, stream: GenerationStream, console: Console, began: float) -> None:
    answer = Answer(Vocabulary(client.info.tokenizer_json), TextOptions())
    first_s = 0.0
    async for delta in follow_answer(stream):
        first_s = first_s or time.perf_counter() - began
        print(answer.feed(delta).text, end="", flush=True)
    print()
    line = describe_usage(stream.accepted.usage, answer.tokens, first_s, time.perf_counter() - began)
    console.print(line, style="dim", highlight=False, soft_wrap=True)


def describe_usage(usage: PromptUsage, tokens: int, first_s: float, total_s: float) -> str:
    parts = [f"{usage.prompt_tokens} prompt + {tokens} answer tokens"]
    if usage.video:
        frames = sum(len(clip.timestamps_s) for clip in usage.video)
        parts.append(f"{frames} frames of {sum(clip.duration_s for clip in usage.video):.1f} s")
    if usage.evs is not None:
        parts.append(f"{usage.evs.kept} of {usage.evs.cells} cells kept (evs {usage.evs.method})")
    parts.append(f"first token {first_s:.2f} s, total {total_s:.2f} s")
    return " · ".join(parts)


def _make_request(options: AskOptions) -> Generate:
    clip = MediaPart(
        kind="video",
        source=StoredFile(path=str(options.clip.resolve())),
        video=options.look.video,
    )
    return Generate(
        request_id=uuid.uuid4().hex,
        chat=(ChatMessage(role="user", parts=(clip, TextPart(text=options.prompt))),),
        sampling=SamplingParams(max_tokens=options.max_tokens, temperature=options.temperature),
        evs=options.look.evs,
        progress=True,
    )
