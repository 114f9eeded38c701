"""`evs advise`: each way is measured afresh on a real engine, and the advice follows from the numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from rich.console import Console

from app.advise import choose_ways, recommend, tabulate
from app.advise_graphs import TOKENS, Combination, measure_combinations, recommend_graphs, tabulate_combinations
from app.measure import Ask, Measured, Paced, Way, measure_ways
from app.model_path import resolve_model
from app.settings import Settings
from runner.client import start_engine
from runner.config import EngineConfig
from runner.messages import EvsUsage
from runner.requests import EvsOptions, VideoOptions

CLIP = Path(__file__).parents[2] / "sample_videos" / "mover.mp4"


async def test_each_way_is_measured_afresh() -> None:
    """Nothing is answered from a cache: in each round each way decodes and encodes what it says."""
    config = EngineConfig(model=resolve_model("demo"), served_name="demo", dtype="float32", threads=1)
    client = await start_engine(config, where="thread")
    try:
        ways = await choose_ways(client, CLIP, VideoOptions())
        found = await measure_ways(client, CLIP, ways, video=VideoOptions(), rounds=2)
        counters = (await client.stats("x")).counters
    finally:
        await client.close(grace_s=0.0)
    assert [way.name for way in ways] == ["none", "gate, reuse", "gate, skip", "gate, full", "evs"]
    asked = 1 + 3 * len(ways)
    assert counters["evs:media_cache_misses_total"] == asked
    assert counters["evs:media_cache_hits_total"] == 0
    assert counters["evs:encoder_cache_misses_total"] == asked
    off, reuse, skip, full, evs = found
    cells = off.asks[0].evs.cells
    assert [one.asks[0].evs.encoder_cells for one in found] == [cells, 56, 56, cells, cells]
    assert evs.kept_share == pytest.approx(reuse.kept_share, abs=0.01)
    assert reuse.asks[0].prompt_tokens == skip.asks[0].prompt_tokens == full.asks[0].prompt_tokens
    for one in found:
        assert len(one.asks) == 2
        assert all(0 < ask.encoder_s < ask.first_s for ask in one.asks)
    seen = {key for key in counters if key.startswith("evs:encoder_patches_total")}
    assert {f'evs:encoder_patches_total{{mode="{mode}",reason=""}}' for mode in ("full", "skip", "reuse")} == seen
    assert tabulate(found).row_count == 5


async def test_four_combinations_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """EVS off and on, graphs off and on, each on an engine that was started so; what the flag did is counted."""
    settings = Settings(model="demo", dtype="float32", threads=1)
    ways = [Way(name=name, evs=EvsOptions(method=name)) for name in ("none", "gate")]
    found, refusal = await measure_combinations(
        settings, CLIP, ways, video=VideoOptions(), rounds=1, console=Console(stderr=True)
    )
    assert refusal is None
    assert [(one.way.name, one.graphs) for one in found] == [
        ("none", "never"), ("gate", "never"), ("none", "always"), ("gate", "always"),
    ]  # fmt: skip
    assert [one.share_in_graphs for one in found] == [0.0, 0.0, 1.0, 1.0]
    assert all(0 < one.token_s < one.first_s + one.answer_s and len(one.turns) == 2 for one in found)
    assert tabulate_combinations(found).row_count == 4


def combination(graphs: Literal["never", "always"], *answers_s: float) -> Combination:
    turns = [(Paced(first_s=0.0, token_s=s / (TOKENS - 1), share_in_graphs=0.0),) for s in answers_s]
    return Combination(way=Way(name="gate", evs=EvsOptions(method="gate")), graphs=graphs, turns=tuple(turns))


@pytest.mark.parametrize(
    ("on_s", "advice"), [((1.5, 1.6), "always. An answer of 24 tokens takes 0.74"), ((1.5, 2.4), "auto."),
                         ((2.5, 2.4), "never. An answer of 24 tokens takes 0.85"), ((1.99, 2.19), "auto.")],
)  # fmt: skip
def test_the_worked_example_of_graphs(on_s: tuple[float, float], advice: str) -> None:
    found = [combination("never", 2.0, 2.2), combination("always", *on_s)]
    assert recommend_graphs(found, found[0].way, None).startswith(f"Recommended: --graphs {advice}")
    assert "no graphs for it" in recommend_graphs(found[:1], found[0].way, "no graphs for it")


def measured(name: str, evs: EvsOptions, encoder: str, encoder_cells: int, *first_s: float) -> Measured:
    usage = EvsUsage(
        method=evs.method or "none", frames=2, slots=1, cells=100, kept=30, kept_per_slot=((30,),),
        encoder_cells=encoder_cells, encoder=encoder,
    )  # fmt: skip
    asks = [Ask(prompt_tokens=40, evs=usage, first_s=value, encoder_s=value / 2) for value in first_s]
    return Measured(way=Way(name=name, evs=evs), asks=tuple(asks))


def ways(reuse_s: float, full_s: float, evs_s: float = 0.8) -> list[Measured]:
    return [
        measured("none", EvsOptions(method="none"), "full", 100, 1.0, 1.0),
        measured("gate, reuse", EvsOptions(method="gate", encoder="reuse"), "reuse", 30, reuse_s, reuse_s),
        measured("gate, skip", EvsOptions(method="gate", encoder="skip"), "skip", 30, 0.2, 0.2),
        measured("gate, full", EvsOptions(method="gate", encoder="full"), "full", 100, full_s, full_s),
        measured("evs", EvsOptions(method="evs", rate=0.7), "full", 100, evs_s, evs_s),
    ]


def test_the_worked_example_of_the_advice() -> None:
    """The fastest that sees whole pictures; what encodes more when that costs nothing; off when nothing is saved."""
    assert '--evs gate (in a request: "evs": {"method": "gate", "encoder": "reuse"})' in recommend(ways(0.3, 0.6))
    assert '"encoder": "full"' in recommend(ways(0.3, 0.32))
    assert "--evs none" in recommend(ways(0.95, 0.97, 0.91))


def test_ratios_pair_what_was_measured_in_one_round() -> None:
    """A machine that halves its speed from one round to the next does not change them."""
    base = measured("none", EvsOptions(method="none"), "full", 100, 1.0, 2.0, 4.0)
    half = measured("gate", EvsOptions(method="gate"), "reuse", 30, 0.5, 1.0, 2.0)
    assert half.first_ratio(base) == half.encoder_ratio(base) == 0.5
    assert (half.first_s, half.encoder_s) == (1.0, 0.5)
