"""What guessing tokens gains where an answer repeats itself, and what it costs where nothing guessed is right.

    python -m bench.speculation FOLDER [--draft MODEL] [--tokens N] [--repeats N]

FOLDER is what bench/checkpoint.py made. Each load is answered with and without guesses in turn, in this process; the
rate is that of the tokens after the first. Loads: `repetitive`, greedy, which random weights answer with the same
tokens again and again; `fresh`, sampled from the whole vocabulary, where nothing said comes again; `hostile`, sampled
from sixteen tokens, where there is nearly always a guess, and nearly always a wrong one. Prints a table for people and
one JSON line. Measure on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from bench.local import LocalAsker
from bench.machine import Watch
from runner.assembly import Assembled, assemble
from runner.config import EngineConfig, Speculating
from runner.draft_depth import DraftDepth, depths_up_to
from runner.requests import SamplingParams, TextPart
from runner.speculation import Speculation

WORDS = "word " * 200
EVEN = SamplingParams(temperature=1.0, logit_bias=dict.fromkeys(range(1000, 1016), 100.0))
LOADS: dict[str, tuple[SamplingParams, int]] = {
    "repetitive": (SamplingParams(temperature=0.0), 1),
    "repetitive, 4 at once": (SamplingParams(temperature=0.0), 4),
    "fresh": (SamplingParams(temperature=1.0), 1),
    "hostile": (EVEN, 1),
    "hostile, 4 at once": (EVEN, 4),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Tokens a second, medians over the repeats; ratio: median of those of single rounds. accepted: of what was
    drafted, in all."""

    load: str
    plain: float
    guessing: float
    ratio: float
    drafted: int
    accepted: int
    tokens_per_step: float


class Asker(LocalAsker):
    """One engine, asked with or without guesses."""

    def __init__(self, assembled: Assembled) -> None:
        super().__init__(assembled)
        self._plain = Speculation(None, DraftDepth(depths_up_to(1)))
        self.guessing = assembled.engine.speculation

    def rate(self, sampling: SamplingParams, count: int, *, tokens: int, seed: int, guess: bool) -> tuple[float, float]:
        """(tokens a second, tokens a step and sequence) after the first ones, `count` answers at once."""
        self.engine.speculation = self.guessing if guess else self._plain
        sequences = [
            self.add((TextPart(text=f"{WORDS}{number}"),), _limited(sampling, tokens, seed + number), evs="none")
            for number in range(count)
        ]
        while not all(sequence.output for sequence in sequences):
            self.engine.step()
        before, started = sum(len(s.output) for s in sequences), time.perf_counter()
        steps = self.run()
        made = sum(len(s.output) for s in sequences) - before
        return made / (time.perf_counter() - started), made / steps / count


def _limited(sampling: SamplingParams, tokens: int, seed: int) -> SamplingParams:
    return SamplingParams(
        temperature=sampling.temperature, logit_bias=sampling.logit_bias, max_tokens=tokens, seed=seed, ignore_eos=True
    )


def measure(asker: Asker, load: str, *, tokens: int, repeats: int) -> Row:
    sampling, count = LOADS[load]
    plain, guessing, per_step = list[float](), list[float](), list[float]()
    before = asker.guessing.counters.copy()
    for repeat in range(repeats):
        plain.append(asker.rate(sampling, count, tokens=tokens, seed=10 * repeat, guess=False)[0])
        rate, step = asker.rate(sampling, count, tokens=tokens, seed=10 * repeat, guess=True)
        guessing.append(rate)
        per_step.append(step)
    counted = asker.guessing.counters - before
    return Row(
        load=load,
        plain=median(plain),
        guessing=median(guessing),
        ratio=median(g / p for g, p in zip(guessing, plain, strict=True)),
        drafted=counted["drafted"],
        accepted=counted["accepted"],
        tokens_per_step=median(per_step),
    )


def show(rows: list[Row], others: float) -> None:
    table = Table("load", "plain tok/s", "guessing tok/s", "ratio", "accepted of drafted", "tokens a step")
    for row in rows:
        numbers = (f"{row.plain:.1f}", f"{row.guessing:.1f}", f"{row.ratio:.2f}")
        table.add_row(row.load, *numbers, f"{row.accepted} of {row.drafted}", f"{row.tokens_per_step:.2f}")
    Console().print(table)
    print(json.dumps({"others": round(others, 2), "rows": [asdict(row) for row in rows]}))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="what bench/checkpoint.py wrote")
    parser.add_argument("--draft", help="guess with this model instead of n-grams")
    parser.add_argument("--loads", nargs="*", choices=LOADS, default=list(LOADS))
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    speculating = Speculating(method="draft" if given.draft else "ngram", model=given.draft)
    config = EngineConfig(model=str(given.folder / "model"), served_name="speed", speculating=speculating)
    assembled = assemble(config, lambda _phase, _done, _total: None)
    with assembled.pool, Watch() as watch:
        asker = Asker(assembled)
        asker.rate(LOADS["fresh"][0], 1, tokens=8, seed=0, guess=False)
        rows = [measure(asker, load, tokens=given.tokens, repeats=given.repeats) for load in given.loads]
    show(rows, watch.others)


if __name__ == "__main__":
    main()
