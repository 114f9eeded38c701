"""Owns `evs advise`: which pruning and which encoder mode pay for one clip, and whether graphs do, on this model and
this machine.

Knows nothing of how they work. It measures times, not answers: whether an answer is as good with less looked at, nobody
can say but who knows what is asked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from app.advise_graphs import measure_combinations, recommend_graphs, tabulate_combinations
from app.look import Look
from app.measure import Measured, Way, ask_first_token, measure_ways
from app.own_engine import own_engine
from app.settings import Settings
from runner.client import EngineClient
from runner.requests import EvsOptions, VideoOptions

# What is looked at is not given up for less than this.
WORTH_SHARE = 0.1
# Closer than this, in shares of the time with EVS off, two ways are as fast as each other.
ALIKE_SHARE = 0.03
MAX_RATE = 0.98


async def advise_once(settings: Settings, clip: Path, look: Look, *, rounds: int) -> None:
    console = Console(stderr=True)
    async with own_engine(settings, console, where="process") as client:
        ways = await choose_ways(client, clip, look.video)
        found = await measure_ways(client, clip, ways, video=look.video, rounds=rounds)
    out = Console()
    out.print(tabulate(found))
    out.print(recommend(found), highlight=False, soft_wrap=True)
    best = choose_best(found).way
    ways = list(dict.fromkeys((found[0].way, best if best.name != "none" else found[1].way)))
    combined, refusal = await measure_combinations(
        settings, clip, ways, video=look.video, rounds=rounds, console=console
    )
    out.print(tabulate_combinations(combined))
    out.print(recommend_graphs(combined, best, refusal), highlight=False, soft_wrap=True)


async def choose_ways(client: EngineClient, clip: Path, video: VideoOptions) -> list[Way]:
    """EVS off, `gate` in each encoder mode, and `evs` at the share that `gate` keeps."""
    gate = (await ask_first_token(client, clip, EvsOptions(method="gate"), video)).evs
    rate = min(round(1 - gate.kept / gate.cells, 3), MAX_RATE)
    ways = [Way(name="none", evs=EvsOptions(method="none"))]
    modes = ("full",) if gate.encoder == "full" else ("reuse", "skip", "full")
    ways += [Way(name=f"gate, {mode}", evs=EvsOptions(method="gate", encoder=mode)) for mode in modes]  # type: ignore[arg-type]
    return [*ways, Way(name="evs", evs=EvsOptions(method="evs", rate=rate))]


def tabulate(found: Sequence[Measured]) -> Table:
    base = found[0]
    table = Table(
        "way", "kept", "encoded", "prompt", "encoder s", "first token s", "of EVS off",
        title=f"cells, tokens and medians of {len(base.asks)} rounds with nothing cached",
    )  # fmt: skip
    for one in found:
        ask = one.asks[0]
        table.add_row(
            one.way.name,
            f"{ask.evs.kept} / {ask.evs.cells}",
            str(ask.evs.encoder_cells),
            str(ask.prompt_tokens),
            f"{one.encoder_s:.3f}",
            f"{one.first_s:.3f}",
            f"{one.first_ratio(base):.2f}",
        )
    return table


def choose_best(found: Sequence[Measured]) -> Measured:
    """The fastest way that shows the model whole pictures (`skip` does not), or one as good as that which encodes more;
    EVS off where nothing saves a tenth.

    Worked example: off 1.0 s, gate with reuse 0.3 s, with skip 0.2 s, evs 0.8 s: gate with reuse. Were gate in full
    0.32 s, it would be that. Off 1.0 s and all others above 0.9 s: off.
    """
    base = found[0]
    whole = [(one.first_ratio(base), one) for one in found if one.asks[0].evs.encoder != "skip"]
    fastest = min(ratio for ratio, _ in whole)
    near = [(ratio, one) for ratio, one in whole if ratio <= fastest + ALIKE_SHARE]
    ratio, best = max(near, key=lambda pair: (pair[1].asks[0].evs.encoder_cells, -pair[0]))
    return best if ratio <= 1 - WORTH_SHARE else base


def recommend(found: Sequence[Measured]) -> str:
    """The best way in words, with its figures."""
    base, best = found[0], choose_best(found)
    if best is base:
        return (
            f"Recommended: --evs none. Nothing saves a tenth of the first token's {base.first_s:.3f} s on this clip, "
            "so there is no reason to look at less of it."
        )
    ratio = best.first_ratio(base)
    evs, ask = best.way.evs, best.asks[0]
    flags = f"--evs {evs.method}" + (f" --evs-rate {evs.rate:g}" if evs.rate is not None else "")
    asked = {"method": evs.method, "rate": evs.rate, "encoder": ask.evs.encoder}
    fields = json.dumps({"evs": {name: value for name, value in asked.items() if value is not None}})
    return (
        f"Recommended: {flags} (in a request: {fields[1:-1]}). First token {best.first_s:.3f} s against "
        f"{base.first_s:.3f} s with EVS off ({ratio:.2f} of it), encoder {best.encoder_s:.3f} s against "
        f"{base.encoder_s:.3f} s, {ask.evs.kept} of {ask.evs.cells} cells read. These are times only: look at the "
        f"answers with `evs ask --evs {evs.method}`."
    )
