"""What the vision encoder takes when only some cells are kept, beside encoding all of them.

    python -m bench.checkpoint FOLDER && python -m bench.encoder FOLDER

A clip of 32 slots of 448 x 252 in the encoder alone, from pixels to cells: kept shares of a tenth, a quarter and a
half, as a rectangle that wanders over the picture (modes `reuse` and `skip`) and at random places. And clips of 8
slots, four packed as one batch beside one alone, per kept cell. What is compared is run by turns; ratios are medians of
rounds. Prints a table for people and one JSON line. Measure on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from bench.checkpoint import SIZE
from bench.machine import Watch, describe_machine
from evs.policy import Encoder, make_policy
from evs.selection import Selection
from runner.config import EngineConfig
from runner.engine_process import keep_freed_memory
from runner.families.base import Family
from runner.items import Decoded, MediaItem
from runner.loader import load_model
from runner.speed import count_cores
from vision.frames import VideoFrames
from vision.towers.packed import concatenate

SLOTS, FPS = 32, 2
SHARES = (0.1, 0.25, 0.5)


@dataclass(frozen=True, kw_only=True)
class Row:
    """over: the ratio less the kept share, what is paid for the gathering."""

    what: str
    mode: str
    kept_share: float
    seconds: float
    ratio: float
    over: float


def make_clip(family: Family, slots: int, seed: int) -> Decoded:
    """Noise: the encoder's time does not depend on what is seen."""
    frames = slots * 2
    pixels = np.random.default_rng(seed).integers(0, 256, (frames, 3, *SIZE), dtype=np.uint8)
    clip = VideoFrames(
        kind="video", pixels=pixels, times_s=tuple(number / FPS for number in range(frames)),
        frame_indices=tuple(range(frames)), duration_s=frames / FPS, source_fps=float(FPS), source_size=SIZE,
        codec="none", container="none", num_frames=frames,
    )  # fmt: skip
    return Decoded.of(clip, family.patch_grid(clip))


def wandering(clip: Decoded, share: float, rng: np.random.Generator) -> np.ndarray:
    """Slot 0 whole, then one rectangle a slot, so that about `share` of all cells is kept."""
    slots, (height, width) = clip.grid.slots, clip.grid.grid
    keep = np.zeros((slots, height, width), dtype=np.bool_)
    keep[0] = True
    cells = (share * slots - 1) / (slots - 1) * height * width
    rows = min(height, max(1, round(cells**0.5)))
    columns = min(width, max(1, round(cells / rows)))
    for slot in keep[1:]:
        top, left = rng.integers(0, height - rows + 1), rng.integers(0, width - columns + 1)
        slot[top : top + rows, left : left + columns] = True
    return keep.reshape(slots, -1)


def scattered(clip: Decoded, share: float, rng: np.random.Generator) -> np.ndarray:
    slots = clip.grid.slots
    keep: np.ndarray = rng.random((slots, clip.grid.cells_per_slot)) < (share * slots - 1) / (slots - 1)
    keep[0] = True
    return keep


def make_item(clip: Decoded, keep: np.ndarray, mode: Encoder) -> MediaItem:
    policy = make_policy("random", rate=0.5, encoder=mode)
    return MediaItem.of(clip, Selection(keep=keep, method="random"), policy)


@torch.inference_mode()
def time_encoding(family: Family, items: list[MediaItem]) -> float:
    started = time.perf_counter()
    batches = [family.patch_batch(item, 0, item.grid.slots) for item in items]
    family.encode(batches[0] if len(batches) == 1 else concatenate(batches))
    return time.perf_counter() - started


def compare(
    base: Callable[[], float], others: list[Callable[[], float]], rounds: int
) -> list[list[tuple[float, float]]]:
    """(seconds, ratio to the base before and after it) of each, round by round; the first base only warms up."""
    found: list[list[tuple[float, float]]] = [[] for _ in others]
    base()
    after = base()
    for _ in range(rounds):
        for one, run in zip(found, others, strict=True):
            before, own, after = after, run(), base()
            one.append((own, own / ((before + after) / 2)))
    return found


def measure_shares(family: Family, rounds: int) -> list[Row]:
    clip, rng = make_clip(family, SLOTS, 0), np.random.default_rng(1)
    dense = make_item(clip, np.ones((SLOTS, clip.grid.cells_per_slot), dtype=np.bool_), "full")
    cases: list[tuple[str, Encoder, MediaItem]] = [
        (name, mode, make_item(clip, keep, mode))
        for share in SHARES
        for name, keep in (("wandering", wandering(clip, share, rng)), ("scattered", scattered(clip, share, rng)))
        for mode in ("reuse", "skip")
        if (name, mode) != ("scattered", "skip")
    ]
    runs = [lambda item=item: time_encoding(family, [item]) for _, _, item in cases]
    rows = []
    for (name, mode, item), found in zip(
        cases, compare(lambda: time_encoding(family, [dense]), runs, rounds), strict=True
    ):
        ratio, share = statistics.median(ratio for _, ratio in found), item.selection.kept_share
        seconds = statistics.median(seconds for seconds, _ in found)
        rows.append(Row(what=name, mode=mode, kept_share=share, seconds=seconds, ratio=ratio, over=ratio - share))
    return rows


def measure_packing(family: Family, rounds: int) -> dict[str, float]:
    """Time per kept cell of four clips as one batch over that of one clip alone."""
    rng = np.random.default_rng(2)
    ratios = {}
    for share, slots in ((0.25, 8), (1.0, 3)):  # four of these are what one step of the engine takes
        clips = [make_clip(family, slots, seed) for seed in range(4)]
        keeps = [
            wandering(clip, share, rng) if share < 1 else np.ones((slots, clip.grid.cells_per_slot), bool)
            for clip in clips
        ]
        items = [make_item(clip, keep, "reuse") for clip, keep in zip(clips, keeps, strict=True)]
        per_cell = sum(item.selection.kept for item in items) / items[0].selection.kept
        (found,) = compare(
            lambda items=items: time_encoding(family, items[:1]),
            [lambda items=items: time_encoding(family, items)],
            rounds,
        )
        ratios[f"{items[0].encoder}, {share:g} kept"] = statistics.median(ratio for _, ratio in found) / per_cell
    return ratios


def show(rows: list[Row], packing: dict[str, float], others: float) -> None:
    table = Table("kept cells", "mode", "kept share", "s", "of dense", "over the share")
    for row in rows:
        table.add_row(
            row.what, row.mode, f"{row.kept_share:.3f}", f"{row.seconds:.3f}", f"{row.ratio:.3f}", f"{row.over:+.3f}"
        )
    Console().print(table)
    for name, ratio in packing.items():
        Console().print(f"4 clips packed, per cell, over one alone ({name}): {ratio:.2f}")
    machine = describe_machine()
    Console().print(f"{machine['cpu']}, {machine['date']}; others used {others:.2f} cores")
    print(json.dumps({"rows": [asdict(row) for row in rows], "packing": packing, "others": others, "machine": machine}))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="what bench/checkpoint.py wrote")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=count_cores())
    parser.add_argument("--only", choices=("shares", "packing"), help="leave out the other half")
    options = parser.parse_args()
    keep_freed_memory()  # as the engine's process does
    torch.set_num_threads(options.threads)
    config = EngineConfig(model=str(options.folder / "model"), served_name="speed")
    family = load_model(config, lambda _phase, _done, _total: None).family
    with Watch() as watch:
        rows = measure_shares(family, options.rounds) if options.only != "packing" else []
        packing = measure_packing(family, options.rounds) if options.only != "shares" else {}
    show(rows, packing, watch.others)


if __name__ == "__main__":
    main()
