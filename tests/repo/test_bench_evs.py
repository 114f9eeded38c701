"""The pruning benchmarks measure what they say: the still clip's changing share, the kept shares, paired ratios."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.measure import Ask, Measured
from bench.encoder import SHARES, compare, make_clip, make_item, scattered, time_encoding, wandering
from bench.evs import as_row, draw, list_ways, write_still
from runner.messages import EvsUsage
from runner.requests import ChatMessage, EvsOptions, MediaPart, StoredFile, TextPart
from tests.checkpoints.bench_load import write_tiny_load
from tests.harness import LocalEngine, local_engine


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_load(folder)
    with local_engine(folder) as local:
        yield local


def test_the_still_clip_changes_as_it_says(tiny: LocalEngine, tmp_path: Path) -> None:
    write_still(tmp_path / "still.mp4")
    part = MediaPart(kind="video", source=StoredFile(path=str(tmp_path / "still.mp4")))
    chat = [ChatMessage(role="user", parts=(part, TextPart(text="?")))]
    selection = tiny.lay_out(chat, EvsOptions(method="gate")).items[0].selection
    assert selection.keep.shape == (8, 144)
    assert selection.keep[1:].mean() == pytest.approx(0.13, abs=0.03)


def test_shares_are_kept_and_encoded(tiny: LocalEngine) -> None:
    family, rng = tiny.assembled.loaded.family, np.random.default_rng(0)
    clip = make_clip(family, 32, 0)
    for share in SHARES:
        for keep in (wandering(clip, share, rng), scattered(clip, share, rng)):
            assert keep.mean() == pytest.approx(share, abs=0.02)
    items = [make_item(clip, wandering(clip, 0.1, rng), mode) for mode in ("reuse", "skip")]
    assert time_encoding(family, items) > 0


def test_each_run_is_compared_with_the_bases_round_it() -> None:
    bases = iter([9.0, 1.0, 3.0, 5.0])
    (first, second) = compare(lambda: next(bases), [lambda: 1.0, lambda: 2.0], 1)
    assert (first, second) == ([(1.0, 0.5)], [(2.0, 0.5)])


def test_rows_and_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plot needs matplotlib, of the extra `bench`")
    found = []
    for way in list_ways():
        usage = EvsUsage(
            method=way.evs.method or "", frames=2, slots=1, cells=4, kept=2, kept_per_slot=((2,),), encoder_cells=2,
            encoder=way.evs.encoder or "full", rate=way.evs.rate,
        )  # fmt: skip
        found.append(Measured(way=way, asks=(Ask(prompt_tokens=9, evs=usage, first_s=2.0, encoder_s=0.5),)))
    assert len({one.way.name for one in found}) == len(found)
    rows = [as_row(one, found[0]) for one in found]
    assert rows[0]["first_token_ratio"] == rows[0]["encoder_ratio"] == 1.0
    draw(rows, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
