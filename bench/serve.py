"""Time a server from outside, by its own start or by its address.

    python -m bench.serve FOLDER [--evs METHOD] [--repeats N] [--max-tokens N]   starts `evs serve FOLDER/model`
    python -m bench.serve FOLDER --url http://127.0.0.1:8000                     measures one that runs

FOLDER is what bench/checkpoint.py made. Prints a table for people and one JSON line for scripts. Every request brings a
clip that was never seen before, so that no cache answers. Owns what is measured; knows no engine from inside.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from rich.progress import Progress

from bench.client import Timing, joint_step_s
from bench.machine import Watch, describe_machine, wait_until_quiet
from bench.sessions import WARM_TOKENS, Session, ask_fresh, serve, visit

TOGETHER = 4
READY = re.compile(r"serving .*url=(\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What an engine does on the load: seconds, tokens a second, bytes; medians over the repeats. `others`: cores that
    everybody else used meanwhile."""

    engine: str
    prompt_tokens: int
    first_token_s: float
    per_token_s: float
    together_tokens_per_s: float
    together_per_token_s: float | None
    start_s: float | None = None
    peak_memory_bytes: int | None = None
    others: float = 0.0


def measure(
    session: Session, *, engine: str, repeats: int, max_tokens: int, progress: Progress, first_seed: int = 0
) -> Figures:
    """One warming request, then `repeats` alone and `repeats` times TOGETHER at once."""
    seeds = itertools.count(first_seed)
    task = progress.add_task(engine, total=1 + 2 * repeats)

    def ask(count: int, tokens: int) -> tuple[Timing, ...]:
        timings = ask_fresh(session, seeds, count, tokens)
        progress.advance(task)
        return timings

    ask(1, WARM_TOKENS)
    alone = [ask(1, max_tokens)[0] for _ in range(repeats)]
    together = [ask(TOGETHER, max_tokens) for _ in range(repeats)]
    return summarise(engine, alone, together)


def summarise(engine: str, alone: Sequence[Timing], together: Sequence[Sequence[Timing]]) -> Figures:
    """Medians; what the client cannot see is left out."""
    rates = [sum(t.completion_tokens for t in group) / _span_s(group) for group in together]
    steps = [step for group in together if (step := joint_step_s(group)) is not None]
    return Figures(
        engine=engine,
        prompt_tokens=alone[0].prompt_tokens,
        first_token_s=median(t.first_token_s for t in alone),
        per_token_s=median(t.per_token_s for t in alone),
        together_tokens_per_s=median(rates),
        together_per_token_s=median(steps) if steps else None,
    )


def _span_s(group: Sequence[Timing]) -> float:
    return max(t.pieces_s[-1] for t in group) - min(t.asked_s for t in group)


def evs_command(folder: Path, evs: str) -> list[str]:
    """A token a step: random weights repeat themselves, and guesses would be too good (bench/speculation.py)."""
    evs_binary = str(Path(sys.executable).with_name("evs"))
    flags = ["--port", "0", "--evs", evs, "--dtype", "bfloat16", "--speculative-method", "none"]
    return [evs_binary, "serve", str(folder / "model"), *flags]


def measure_server(
    command: Sequence[str], ready: re.Pattern[str], *, engine: str, repeats: int, max_tokens: int, progress: Progress
) -> Figures:
    """Start, measure and end a server."""
    with Watch() as watch, serve(command, ready) as session:
        figures = measure(session, engine=engine, repeats=repeats, max_tokens=max_tokens, progress=progress)
    values = {"start_s": session.start_s, "peak_memory_bytes": watch.peak_memory_bytes, "others": watch.others}
    return Figures(**{**asdict(figures), **values})


def show(figures: Figures) -> None:
    for name, value in asdict(figures).items():
        print(f"{name:24} {value:.4f}" if isinstance(value, float) else f"{name:24} {value}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--url")
    parser.add_argument("--evs", default="none")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--wait-s", type=float, default=600.0)
    options = parser.parse_args()
    wait_until_quiet(options.wait_s)
    wanted = {"engine": f"evs ({options.evs})", "repeats": options.repeats, "max_tokens": options.max_tokens}
    with Progress(transient=True) as progress:
        if options.url:
            with visit(options.url) as session:
                figures = measure(session, **wanted, progress=progress, first_seed=int(time.time()))
        else:
            figures = measure_server(evs_command(options.folder, options.evs), READY, **wanted, progress=progress)
    show(figures)
    print(json.dumps({**asdict(figures), "machine": describe_machine()}))


if __name__ == "__main__":
    main()
