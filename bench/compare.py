"""This engine beside others on the same checkpoint, clips and questions: all up at once, asked in turn.

    python -m bench.compare FOLDER [--evs none --evs gate] [--openvino PYTHON] [--vllm PYTHON] [--llama PROGRAM]
                                   [--server NAME=URL ...] [--repeats N]

transformers always runs, others where a flag says that they are (bench/peers.py); other servers that speak the OpenAI
protocol and take `video_url` are measured at their address. First each engine runs alone, for its start and its memory.
Then all are up, and each round asks every one of them, in changing order, one question and four at once: a machine's
speed drifts (a virtual one's by a factor of two within minutes), and what is asked in the same minute compares. Ratios
are medians over rounds. Prints a table and one JSON line, and keeps the line under bench/results/. Owns the order and
the ratios.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.client import Timing
from bench.machine import QUIET_CORES, Watch, describe_machine, wait_until_quiet
from bench.peers import Opener, add_flags, find_engines
from bench.serve import TOGETHER, Figures, summarise
from bench.sessions import WARM_TOKENS, ask_fresh

RESULTS = Path(__file__).with_name("results")
ALONE_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One question alone, and TOGETHER at once."""

    alone: Timing
    together: tuple[Timing, ...]


def run_alone(opener: Opener, seeds: Iterator[int]) -> tuple[float | None, int | None]:
    """Start, four questions at once, end: seconds of the start and bytes of memory, where we started it."""
    with Watch() as watch, opener() as session:
        ask_fresh(session, seeds, 1, WARM_TOKENS)
        ask_fresh(session, seeds, TOGETHER, ALONE_TOKENS)
        start_s = session.start_s
    return start_s, watch.peak_memory_bytes if start_s is not None else None


def run_rounds(
    openers: dict[str, Opener], seeds: Iterator[int], *, repeats: int, max_tokens: int
) -> tuple[dict[str, list[Round]], float]:
    """Every engine's rounds, in step with each other's; and the cores that everybody else used meanwhile, counted while
    all are up: what an engine's own children used is lost when they end and it does not wait for them."""
    rounds: dict[str, list[Round]] = {name: [] for name in openers}
    with ExitStack() as stack, Progress(transient=True) as progress:
        task = progress.add_task("rounds", total=repeats * len(openers))
        sessions = {name: stack.enter_context(opener()) for name, opener in openers.items()}
        for session in sessions.values():
            ask_fresh(session, seeds, 1, WARM_TOKENS)
        with Watch() as watch:
            for number in range(repeats):
                order = list(sessions) if number % 2 == 0 else list(sessions)[::-1]
                alone = {name: ask_fresh(sessions[name], seeds, 1, max_tokens)[0] for name in order}
                for name in order:
                    together = ask_fresh(sessions[name], seeds, TOGETHER, max_tokens)
                    rounds[name].append(Round(alone=alone[name], together=together))
                    progress.advance(task)
    return rounds, watch.others


def check_lengths(name: str, rounds: list[Round], max_tokens: int) -> None:
    """An answer that ended early, or ran on, is other work."""
    lengths = {timing.completion_tokens for each in rounds for timing in (each.alone, *each.together)}
    if lengths != {max_tokens}:
        raise RuntimeError(f"{name} wrote answers of {sorted(lengths)} tokens, {max_tokens} were asked for")


def ratios(ours: Figures, other: Figures) -> dict[str, float]:
    """How much better we are: first token in shares of the other's time (small is good), speeds as factors."""
    return {
        "first_token": ours.first_token_s / other.first_token_s,
        "decode": other.per_token_s / ours.per_token_s,
        "together": ours.together_tokens_per_s / other.together_tokens_per_s,
    }


def paired_ratios(ours: list[Round], other: list[Round]) -> dict[str, float]:
    """Medians of the rounds' ratios."""
    each = [
        ratios(summarise("", [a.alone], [a.together]), summarise("", [b.alone], [b.together]))
        for a, b in zip(ours, other, strict=True)
    ]
    return {name: median(ratio[name] for ratio in each) for name in each[0]}


def show(measured: list[Figures], paired: dict[str, dict[str, float]]) -> None:
    table = Table(
        "engine", "prompt", "first token s", "decode tok/s", "4 at once tok/s", "step 4 / 1", "RSS GB", "start s"
    )
    for figures in measured:
        step, against = figures.together_per_token_s, paired[figures.engine]
        table.add_row(
            figures.engine,
            str(figures.prompt_tokens),
            f"{figures.first_token_s:.2f} (x{against['first_token']:.2f})",
            f"{1 / figures.per_token_s:.1f} (x{against['decode']:.2f})",
            f"{figures.together_tokens_per_s:.1f} (x{against['together']:.2f})",
            "-" if step is None else f"{step / figures.per_token_s:.2f}",
            "-" if figures.peak_memory_bytes is None else f"{figures.peak_memory_bytes / 1e9:.2f}",
            "-" if figures.start_s is None else f"{figures.start_s:.1f}",
        )
    Console(width=130).print(table)
    print("(x...): the first row against that one; first token small is good, speeds large")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="what bench/checkpoint.py made")
    add_flags(parser)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--wait-s", type=float, default=600.0, help="for a quiet machine")
    options = parser.parse_args()
    openers, seeds = find_engines(options), itertools.count()
    wait_until_quiet(options.wait_s)
    alone = {name: run_alone(opener, seeds) for name, opener in openers.items()}
    rounds, others = run_rounds(openers, seeds, repeats=options.repeats, max_tokens=options.max_tokens)
    measured = []
    for name, found in rounds.items():
        check_lengths(name, found, options.max_tokens)
        figures = summarise(name, [each.alone for each in found], [each.together for each in found])
        start_s, memory = alone[name]
        measured.append(replace(figures, start_s=start_s, peak_memory_bytes=memory, others=others))
    paired = {name: paired_ratios(rounds[measured[0].engine], found) for name, found in rounds.items()}
    show(measured, paired)
    print(f"others used {others:.2f} cores" + ("; these figures are disturbed" if others > QUIET_CORES else ""))
    keep({"figures": [asdict(figures) for figures in measured], "ratios": paired, "rounds": options.repeats})


def keep(result: dict[str, object]) -> None:
    line = json.dumps({**result, "machine": describe_machine()})
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "compare.jsonl").open("a") as file:
        file.write(line + "\n")
    print(line)


if __name__ == "__main__":
    main()
