"""Owns how scores are shown: tables, JSON, a plot. Knows nothing of how they came about."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from demo.questions import FIRST_KINDS, KINDS
from demo.scores import Mark, compare, count_by_kind, share_right
from runner.messages import EvsUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One way's marks, and what it looked at of each clip."""

    way: str
    marks: tuple[Mark, ...]
    looks: tuple[EvsUsage, ...]

    def kept_share(self, without: frozenset[int] = frozenset()) -> float:
        """Of all cells of all clips but those of the numbers `without`."""
        clips = sorted({mark.clip for mark in self.marks})
        looks = [look for clip, look in zip(clips, self.looks, strict=True) if clip not in without]
        return sum(look.kept for look in looks) / sum(look.cells for look in looks)


def show_tables(
    console: Console, scored: Sequence[Scored], recall: Mapping[str, float], shaken: frozenset[int]
) -> None:
    """By way, then by kind of question, then recall; differences are to the first way."""
    base = scored[0]
    console.print(_way_table(scored, shaken))
    console.print(_kind_table(scored))
    first = share_right(mark for mark in base.marks if mark.kind in FIRST_KINDS)
    console.print(f"{len(base.marks)} questions, {len(base.looks)} clips; the first kinds of question: {first:.4f}")
    console.print("recall@1 " + ", ".join(f"{way} {value:.2f}" for way, value in recall.items()))


def _way_table(scored: Sequence[Scored], shaken: frozenset[int]) -> Table:
    table = Table("cells / encoder", "exact", "kept", "still camera", "encoded", "points to the first [95 %]")
    for one in scored:
        difference = "" if one is scored[0] else str(compare(one.marks, scored[0].marks))
        encoded = sum(look.encoder_cells for look in one.looks) / sum(look.cells for look in one.looks)
        table.add_row(
            one.way, f"{share_right(one.marks):.4f}", f"{one.kept_share():.3f}", f"{one.kept_share(shaken):.3f}",
            f"{encoded:.3f}", difference,
        )  # fmt: skip
    return table


def _kind_table(scored: Sequence[Scored]) -> Table:
    table = Table("kind", "asked", *(one.way for one in scored))
    counts = [count_by_kind(one.marks) for one in scored]
    for kind in KINDS:
        if kind in counts[0]:
            table.add_row(kind, str(counts[0][kind][1]), *(f"{c[kind][0] / c[kind][1]:.3f}" for c in counts))
    return table


def as_json(
    scored: Sequence[Scored], recall: Mapping[str, float], shaken: frozenset[int], *, machine: Mapping[str, Any]
) -> str:
    rows = [
        {
            "way": one.way,
            "exact": share_right(one.marks),
            "kept": one.kept_share(),
            "kept_still_camera": one.kept_share(shaken),
            "difference": None if one is scored[0] else asdict(compare(one.marks, scored[0].marks)),
            "kinds": count_by_kind(one.marks),
        }
        for one in scored
    ]
    base = scored[0]
    counts = {"questions": len(base.marks), "clips": len(base.looks)}
    return json.dumps({**counts, "rows": rows, "recall_at_1": dict(recall), "machine": dict(machine)}, indent=1)


def draw_plot(scored: Sequence[Scored], path: Path) -> None:
    """Exact answers against the share of cells kept."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    panel = figure.subplots()
    for one in scored:
        method = one.way.split(" ")[0]
        mark = {"none": "s", "gate": "o", "evs": "^", "uniform": "v", "random": "x"}[method]
        panel.plot(one.kept_share(), 100 * share_right(one.marks), mark, label=one.way)
    panel.set(xlabel="share of cells that the language model reads", ylabel="exact answers, %", xlim=(0, 1.03))
    panel.legend(fontsize="small")
    figure.savefig(path, dpi=110)
