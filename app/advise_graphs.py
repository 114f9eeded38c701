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
from runner.errors import EngineStartError
from runner.requests import VideoOptions

Graphs = Literal["never", "always"]
TOKENS = 24
# A flag is not recommended for less than this share of an answer's time.
WORTH_SHARE = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """An answer of TOKENS tokens to one way of looking, with graphs or without; one of `rounds` a round."""

    way: Way
    graphs: Graphs
    paces: tuple[Paced, ...]

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
    found: list[Combination] = []
    for graphs in ("never", "always"):
        try:
            async with own_engine(settings.model_copy(update={"graphs": graphs}), console, where="process") as client:
                paces: dict[str, list[Paced]] = {way.name: [] for way in ways}
                for number in range(rounds + 1):
                    for way in ways:
                        pace = await pace_answer(client, clip, way.evs, video, tokens=TOKENS)
                        if number:
                            paces[way.name].append(pace)
        except EngineStartError as error:
            return found, str(error)
        found += [Combination(way=way, graphs=graphs, paces=tuple(paces[way.name])) for way in ways]
    return found, None


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
    """For the way of looking that is recommended; `auto` unless the other choice saves WORTH_SHARE of an answer.

    Worked example, answers of 2.0 s without and 1.5 s with graphs: `--graphs always`, 0.75 of the time. With 1.99 s:
    `--graphs auto`. With 2.5 s: `--graphs never`, 0.80 of the time.
    """
    if refusal is not None:
        return f"Graphs cannot be had here: {refusal}"
    off, on = (
        next(c for c in found if c.way.name == way.name and c.graphs == wanted) for wanted in ("never", "always")
    )
    ratio = on.answer_s / off.answer_s
    if abs(1 - ratio) < WORTH_SHARE:
        return f"Recommended: --graphs auto. With graphs an answer takes {ratio:.2f} of the time without."
    best, share = ("always", ratio) if ratio < 1 else ("never", 1 / ratio)
    return (
        f"Recommended: --graphs {best}. An answer of {TOKENS} tokens takes {share:.2f} of the time it takes otherwise."
    )
