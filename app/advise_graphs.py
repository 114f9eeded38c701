"""Owns the part of `evs advise` that starts engines anew: answers with EVS off and on, each with graphs off and on.

Knows nothing of what a graph is. An engine that cannot do without or with them says so when it starts.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from app.measure import Paced, Way, pace_answer
from app.own_engine import own_engine
from app.settings import Settings
from runner.client import EngineClient
from runner.errors import EngineStartError
from runner.requests import VideoOptions

Graphs = Literal["never", "always"]
TOKENS = 24
# Engines run one after the other, and a machine's speed drifts: what is drift does not come again in the other order.
TURNS: tuple[Graphs, ...] = ("never", "always", "always", "never")
# A flag is not recommended for less than this share of an answer's time.
WORTH_SHARE = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """Answers of TOKENS tokens to one way of looking, with graphs or without: those of each turn, one a round."""

    way: Way
    graphs: Graphs
    turns: tuple[tuple[Paced, ...], ...]

    @property
    def paces(self) -> list[Paced]:
        return [pace for turn in self.turns for pace in turn]

    @property
    def answers_s(self) -> list[float]:
        """The median of each turn."""
        return [statistics.median(pace.first_s + (TOKENS - 1) * pace.token_s for pace in turn) for turn in self.turns]

    @property
    def first_s(self) -> float:
        return statistics.median(pace.first_s for pace in self.paces)

    @property
    def token_s(self) -> float:
        return statistics.median(pace.token_s for pace in self.paces)

    @property
    def answer_s(self) -> float:
        return self.first_s + (TOKENS - 1) * self.token_s

    @property
    def share_in_graphs(self) -> float:
        """Of the decode steps."""
        return statistics.mean(pace.share_in_graphs for pace in self.paces)


async def measure_combinations(
    settings: Settings, clip: Path, ways: Sequence[Way], *, video: VideoOptions, rounds: int, console: Console
) -> tuple[list[Combination], str | None]:
    """All that can be had, and why the others cannot. A first round, which pays for what is done once, is not
    counted."""
    found: dict[tuple[str, Graphs], list[tuple[Paced, ...]]] = {}
    refusal = None
    for graphs in TURNS:
        try:
            async with own_engine(settings.model_copy(update={"graphs": graphs}), console, where="process") as client:
                paces = await _measure(client, clip, ways, video=video, rounds=rounds)
        except EngineStartError as error:
            refusal = str(error)
            continue
        for way in ways:
            found.setdefault((way.name, graphs), []).append(paces[way.name])
    by_name = {way.name: way for way in ways}
    return [Combination(way=by_name[name], graphs=g, turns=tuple(turns)) for (name, g), turns in found.items()], refusal


async def _measure(
    client: EngineClient, clip: Path, ways: Sequence[Way], *, video: VideoOptions, rounds: int
) -> dict[str, tuple[Paced, ...]]:
    paces: dict[str, list[Paced]] = {way.name: [] for way in ways}
    for number in range(rounds + 1):
        for way in ways:
            pace = await pace_answer(client, clip, way.evs, video, tokens=TOKENS)
            if number:
                paces[way.name].append(pace)
    return {name: tuple(found) for name, found in paces.items()}


def tabulate_combinations(found: Sequence[Combination]) -> Table:
    table = Table(
        "way", "graphs", "decode steps in graphs", "first token s", "then a token ms", f"{TOKENS} tokens s",
        title="answers with EVS and graphs, off and on",
    )  # fmt: skip
    for one in found:
        table.add_row(
            one.way.name,
            "off" if one.graphs == "never" else "on",
            f"{one.share_in_graphs:.0%}",
            f"{one.first_s:.3f}",
            f"{one.token_s * 1000:.1f}",
            f"{one.answer_s:.3f}",
        )
    return table


def recommend_graphs(found: Sequence[Combination], way: Way, refusal: str | None) -> str:
    """For the way of looking that is recommended; `auto` unless one choice saves WORTH_SHARE of an answer in each turn.

    Worked example, answers of 2.0 s and 2.2 s without graphs, 1.5 s and 1.6 s with them: `--graphs always`, 0.74 of the
    time. With 2.5 s and 2.4 s: `--graphs never`, 0.85 of it. With 1.5 s and 2.4 s: `--graphs auto`.
    """
    if refusal is not None:
        return f"Graphs cannot be had here: {refusal}"
    off, on = (next(c for c in found if c.way.name == way.name and c.graphs == g) for g in ("never", "always"))
    ratios = [ours / theirs for ours, theirs in zip(on.answers_s, off.answers_s, strict=True)]
    ratio = statistics.mean(ratios)
    if max(ratios) < 1 - WORTH_SHARE:
        best, share = "always", ratio
    elif 1 / min(ratios) < 1 - WORTH_SHARE:
        best, share = "never", 1 / ratio
    else:
        measured = " and ".join(f"{ratio:.2f}" for ratio in ratios)
        return f"Recommended: --graphs auto. With graphs an answer took {measured} of the time without."
    return f"Recommended: --graphs {best}. An answer of {TOKENS} tokens takes {share:.2f} of its time otherwise."
