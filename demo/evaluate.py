"""Score a demo model on held-out clips, through the real engine.

    python -m demo.evaluate [FOLDER] --clips 400 [--json scores.json] [--plot scores.png]

Every way of looking answers the same questions about the same mp4 files; differences to EVS off are paired, with
intervals over clips. Owns the run; prints a table for people and writes JSON for programs.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from rich.console import Console

from app.own_engine import own_engine
from app.progress import show_phases
from bench.machine import describe_machine
from demo.asking import Ask, Dtype, Said, ask_all, embed_clips, embed_texts, settings_of
from demo.heldout import HeldOut, make_clip
from demo.report import Scored, as_json, draw_plot, show_tables
from demo.scores import Mark, recall_at_1
from demo.ways import DEFAULT, OFF, WAYS, Way, choose_ways, options_for
from runner.client import EngineClient
from runner.messages import EvsUsage

RETRIEVED = 100
MODEL = Path(__file__).parent / "model"
Update = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clips:
    """Held-out clips and the files they lie in."""

    clips: Sequence[HeldOut]
    paths: Sequence[Path]

    @classmethod
    def write(cls, folder: Path, numbers: Sequence[int], update: Update) -> Clips:
        clips, paths = [], []
        for done, number in enumerate(numbers, start=1):
            clips.append(make_clip(number))
            paths.append(clips[-1].write(folder))
            update("clips", done, len(numbers))
        return cls(clips=clips, paths=paths)


async def score_way(client: EngineClient, held: Clips, way: Way, gated: Sequence[EvsUsage], update: Update) -> Scored:
    """All questions of all clips, one way; gated: what `gate` did to each clip."""
    asks = [
        Ask(clip=path, text=question.text, evs=options_for(way, gated[place] if way.like_gate else None))
        for place, (clip, path) in enumerate(zip(held.clips, held.paths, strict=True))
        for question in clip.questions
    ]
    done = 0

    def note() -> None:
        nonlocal done
        done += 1
        update(way.name, done, len(asks))

    said = await ask_all(client, asks, note)
    return Scored(way=way.name, marks=_mark(held.clips, said), looks=_looks(held.clips, said))


def _mark(clips: Sequence[HeldOut], said: Sequence[Said]) -> tuple[Mark, ...]:
    asked = [(clip.number, question) for clip in clips for question in clip.questions]
    return tuple(
        Mark(clip=number, kind=question.kind, is_right=answer.text == question.answer)
        for (number, question), answer in zip(asked, said, strict=True)
    )


def _looks(clips: Sequence[HeldOut], said: Sequence[Said]) -> tuple[EvsUsage, ...]:
    """One a clip."""
    looks, place = [], 0
    for clip in clips:
        looks.append(said[place].evs)
        place += len(clip.questions)
    return tuple(looks)


async def score_ways(client: EngineClient, held: Clips, ways: Sequence[Way], update: Update) -> list[Scored]:
    """EVS off and the default are among the ways, first."""
    scored: list[Scored] = []
    for way in ways:
        gated = next((one.looks for one in scored if one.way == DEFAULT.name), ())
        scored.append(await score_way(client, held, way, gated, update))
    return scored


async def search(client: EngineClient, held: Clips) -> dict[str, float]:
    """Recall@1 of descriptions among the first RETRIEVED clips, by way."""
    clips, paths = held.clips[:RETRIEVED], held.paths[:RETRIEVED]
    names = [clip.description for clip in clips]
    texts = await embed_texts(client, names)
    return {way.name: recall_at_1(texts, await embed_clips(client, paths, way.evs), names) for way in (OFF, DEFAULT)}


async def evaluate(args: argparse.Namespace, console: Console) -> None:
    ways = choose_ways(args.way)
    settings = settings_of(args.folder, dtype=args.dtype, threads=args.threads)
    with tempfile.TemporaryDirectory() as scratch:
        async with own_engine(settings, console) as client:
            with show_phases(console) as bars:
                held = Clips.write(Path(scratch), range(args.clips), bars.update)
                scored = await score_ways(client, held, ways, bars.update)
                recall = await search(client, held)
    shaken = frozenset(clip.number for clip in held.clips if clip.filming.shake)
    show_tables(Console(), scored, recall, shaken)
    if args.json is not None:
        args.json.write_text(as_json(scored, recall, shaken, machine=describe_machine()))
    if args.plot is not None:
        draw_plot(scored, args.plot)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=MODEL)
    parser.add_argument("--clips", type=int, default=400, help="seven questions each")
    parser.add_argument("--way", action="append", default=[], choices=[way.name for way in WAYS], help="only this one")
    parser.add_argument("--dtype", default="auto", choices=get_args(Dtype), help="as of evs serve")
    parser.add_argument("--threads", type=int, help="compute threads")
    parser.add_argument("--json", type=Path, help="write the scores here")
    parser.add_argument("--plot", type=Path, help="draw the scores here; needs matplotlib")
    args = parser.parse_args()
    asyncio.run(evaluate(args, Console(stderr=True)))


if __name__ == "__main__":
    main()
