"""Owns `evs embed`: one clip, a vector for each of its windows, the engine in this process.

Knows nothing of HTTP. The table, or one JSON object a line, goes to stdout, all else to stderr.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from app.embeddings import text_input
from app.look import Look
from app.model_path import note_demo
from app.own_engine import own_engine
from app.progress import PhaseBars, show_phases
from app.realtime.output import OutputOptions, spell_vector, window_body
from app.settings import Settings
from runner.client import EngineClient
from runner.embed_messages import Embed
from runner.requests import StoredFile
from runner.stream_client import WindowVector
from runner.stream_messages import OpenStream, StreamOpened, WindowOptions

SHOWN_NUMBERS = 4
MIN_WIDTH = 120


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """find: a text to score each window by. form: for people, or for programs."""

    clip: Path
    look: Look
    window_s: float | None = None
    stride_s: float | None = None
    find: str | None = None
    dimensions: int | None = None
    form: Literal["table", "jsonl"] = "table"


async def embed_once(settings: Settings, options: EmbedOptions) -> None:
    console = Console(stderr=True)
    note_demo(settings.model, console)
    async with own_engine(settings, console) as client:
        sought = None if options.find is None else await _embed_text(client, options.find, options.dimensions)
        with show_phases(console) as bars:
            windows = await _embed_windows(client, options, bars, sought)
    if options.form == "table":
        _show_table(windows)
    kept, cells = sum(w["evs"]["kept"] for w in windows), sum(w["evs"]["cells"] for w in windows)
    encoded = sum(w["evs"]["encoder_cells"] for w in windows)
    line = f"{len(windows)} windows · {kept} of {cells} cells read · {encoded} cells encoded"
    console.print(line, style="dim", highlight=False, soft_wrap=True)


async def _embed_windows(
    client: EngineClient, options: EmbedOptions, bars: PhaseBars, sought: list[float] | None
) -> list[dict[str, Any]]:
    """JSON lines are printed as they come."""
    found: list[dict[str, Any]] = []
    bars.update("decode", 0, 0)
    async for event in client.open_stream(_make_request(options)):
        if isinstance(event, StreamOpened):
            bars.update("windows", 0, 0)
        if not isinstance(event, WindowVector):
            continue
        body = window_body(event, OutputOptions(include=frozenset(("evs",))))
        if sought is not None:
            body["score"] = round(sum(a * b for a, b in zip(body["embedding"], sought, strict=True)), 6)
        found.append(body)
        bars.update("windows", len(found), 0)
        if options.form == "jsonl":
            print(json.dumps(body), flush=True)
    return found


async def _embed_text(client: EngineClient, text: str, dimensions: int | None) -> list[float]:
    request = Embed(request_id=uuid.uuid4().hex, inputs=(text_input(text, None),), dimensions=dimensions)
    vectors = [vector async for vector in await client.embed(request)]
    numbers = spell_vector(vectors[0].data, "float")
    assert isinstance(numbers, list)
    return numbers


def _make_request(options: EmbedOptions) -> OpenStream:
    look = options.look
    return OpenStream(
        request_id=uuid.uuid4().hex,
        source=StoredFile(path=str(options.clip.resolve())),
        window=WindowOptions(
            duration_s=options.window_s, stride_s=options.stride_s, fps=look.fps, max_frames=look.max_frames
        ),
        evs=look.evs,
        dimensions=options.dimensions,
    )


def _show_table(windows: list[dict[str, Any]]) -> None:
    with_score = any("score" in window for window in windows)
    table = Table(box=None, pad_edge=False)
    for name in ("start", "end", "frames", "cells", *(["score"] if with_score else []), "vector"):
        table.add_column(name, justify="left" if name == "vector" else "right", no_wrap=True)
    for window in windows:
        evs, numbers = window["evs"], window["embedding"]
        shown = ", ".join(f"{number:+.4f}" for number in numbers[:SHOWN_NUMBERS])
        score = [f"{window['score']:.4f}"] if with_score else []
        table.add_row(
            f"{window['start_sec']:.2f}", f"{window['end_sec']:.2f}", str(len(window["frame_seqs"])),
            f"{evs['kept']}/{evs['cells']}", *score, f"[{shown}, ...] of {len(numbers)}",
        )  # fmt: skip
    console = Console(highlight=False, markup=False)
    console.width = max(console.width, MIN_WIDTH)  # a pipe has no width to keep to
    console.print(table)
