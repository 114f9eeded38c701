"""What pruning saves until the first token: per method, rate and encoder mode.

    python -m bench.checkpoint FOLDER && python -m bench.evs FOLDER --plot bench/results/evs.png

One question about a clip of 16 frames from a camera that stands still, in which a square walks so that 13 % of each
slot's cells change, with nothing cached: kept share, encoder time, first-token time (decoding inside), and their
ratios to EVS off, ways by turns, medians of rounds. The engine is a process of its own, as in a server. Prints a table
for people and one JSON line; the plot needs matplotlib. Measure on a quiet machine. --clip measures another file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from app.measure import Measured, Way, measure_ways
from bench.checkpoint import FRAMES, make_frames, write_clip
from bench.machine import Watch, describe_machine
from runner.client import start_engine
from runner.config import EngineConfig
from runner.requests import EvsOptions, VideoOptions

CELL = 28  # pixels
RATES = (0.5, 0.75, 0.9)


def write_still(path: Path) -> None:
    """A square of 3 x 3 cells walks through a still picture along the cells' rows."""
    frames = make_frames("moving", 0)[:1].repeat(FRAMES, axis=0)
    side, top = 3 * CELL, 2 * CELL
    for number, frame in enumerate(frames):
        left = number * (frame.shape[1] - side) // (FRAMES - 1)
        frame[top : top + side, left : left + side] = 255 - frames[0, -side:, -side:]
    write_clip(path, frames)


def list_ways() -> list[Way]:
    ways = [Way(name="none", evs=EvsOptions(method="none"))]
    ways += [Way(name="gate", evs=EvsOptions(method="gate", encoder=mode)) for mode in ("reuse", "skip", "full")]  # type: ignore[arg-type]
    ways += [Way(name="evs", evs=EvsOptions(method="evs", rate=rate)) for rate in RATES]
    ways += [
        Way(name="random", evs=EvsOptions(method="random", rate=rate, encoder=mode))  # type: ignore[arg-type]
        for rate in RATES
        for mode in ("reuse", "full")
    ]
    return [Way(name=spell(way), evs=way.evs) for way in ways]


def spell(way: Way) -> str:
    return ", ".join(str(part) for part in (way.evs.method, way.evs.rate, way.evs.encoder) if part is not None)


def as_row(one: Measured, base: Measured) -> dict[str, Any]:
    ask = one.asks[0]
    return {
        "method": ask.evs.method, "rate": ask.evs.rate, "encoder": ask.evs.encoder, "kept_share": one.kept_share,
        "encoder_cells": ask.evs.encoder_cells, "prompt_tokens": ask.prompt_tokens, "encoder_s": one.encoder_s,
        "encoder_ratio": one.encoder_ratio(base), "first_token_s": one.first_s,
        "first_token_ratio": one.first_ratio(base),
    }  # fmt: skip


def show(rows: Sequence[dict[str, Any]], others: float) -> None:
    table = Table("method", "rate", "encoder", "kept", "prompt", "encoder s", "of off", "first token s", "of off")
    for row in rows:
        table.add_row(
            row["method"], f"{row['rate'] or '':}", row["encoder"], f"{row['kept_share']:.2f}",
            str(row["prompt_tokens"]), f"{row['encoder_s']:.2f}", f"{row['encoder_ratio']:.2f}",
            f"{row['first_token_s']:.2f}", f"{row['first_token_ratio']:.2f}",
        )  # fmt: skip
    machine = describe_machine()
    Console().print(table)
    Console().print(f"{machine['cpu']}, {machine['date']}; others used {others:.2f} cores")
    print(json.dumps({"rows": rows, "others": others, "machine": machine}))


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Time against kept share: encoder and first token, over those with EVS off."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, what, title in zip(panels, ("encoder", "first_token"), ("vision encoder", "first token"), strict=True):
        for encoder, mark in (("reuse", "o-"), ("skip", "^"), ("full", "s")):
            of_mode = [row for row in rows if row["encoder"] == encoder]
            points = sorted((row["kept_share"], row[f"{what}_ratio"]) for row in of_mode)
            panel.plot(*zip(*points, strict=True), mark, label=encoder)
        panel.plot([0, 1], [0, 1], color="grey", linewidth=0.8, label="kept share")
        panel.set(title=f"{title}: time over EVS off", xlabel="share of cells kept", xlim=(0, 1.02), ylim=(0, 1.1))
    panels[1].legend(title="encoder")
    figure.savefig(path, dpi=110)


async def measure(folder: Path, clip: Path, rounds: int) -> list[dict[str, Any]]:
    config = EngineConfig(model=str(folder / "model"), served_name="speed", max_num_batched_tokens=4096)
    client = await start_engine(config, where="process")
    try:
        found = await measure_ways(client, clip, list_ways(), video=VideoOptions(), rounds=rounds)
    finally:
        await client.close(grace_s=0.0)
    return [as_row(one, found[0]) for one in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="what bench/checkpoint.py wrote")
    parser.add_argument("--clip", type=Path, help="measure this clip")
    parser.add_argument("--plot", type=Path, help="draw into this PNG file")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, Watch() as watch:
        clip = options.clip or Path(scratch) / "still.mp4"
        if options.clip is None:
            write_still(clip)
        rows = asyncio.run(measure(options.folder, clip, options.rounds))
    show(rows, watch.others)
    if options.plot is not None:
        draw(rows, options.plot)


if __name__ == "__main__":
    main()
