"""Steps come in a few numbers of rows, and what only fills them up changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from runner import inputs, model_runner
from runner.model_runner import ModelRunner
from runner.row_ladder import choose_row_count, exact_rows, ladder_rows, whole_rows
from tests.oracle import png_file
from tests.runner.test_streams import REUSE, engine, from_pieces, restless, vectors
from vision.towers import padding

NUM_FRAMES = 20


def test_the_worked_example() -> None:
    assert [ladder_rows(count) for count in (0, 1, 2, 3, 5, 9, 17, 1182)] == [1, 1, 2, 4, 8, 16, 32, 1184]
    sizes = sorted({ladder_rows(count) for count in range(1, 9000)})
    assert sizes[:6] == [1, 2, 4, 8, 16, 32] and {256, 288, 1024, 1088} <= set(sizes)
    assert whole_rows(32, 9) == 36 and whole_rows(32, 4) == 32


def test_little_is_filled_up_and_sizes_are_few() -> None:
    for most, share in ((128, 1 / 8), (512, 1 / 16)):
        assert all(count <= ladder_rows(count) <= count * (1 + share) for count in range(most + 1, 9000))
    assert len({ladder_rows(count) for count in range(1, 2049)}) <= 64
    assert all(ladder_rows(size) == size for size in {ladder_rows(count) for count in range(1, 9000)})
    assert choose_row_count("cuda") is exact_rows and exact_rows(17) == 17


class Products(TorchDispatchMode):
    """Notes the rows of each product with a weight."""

    def __init__(self, rows: set[int]) -> None:
        super().__init__()
        self._rows = rows

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("mm", "addmm", "linear"):
            x = args[1] if name == "addmm" else args[0]
            self._rows.add(x.numel() // x.shape[-1])
        return func(*args, **(kwargs or {}))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Rows of all products of all steps."""
    rows: set[int] = set()
    execute = ModelRunner.execute

    def noting(runner: ModelRunner, plan: Any) -> Any:
        with Products(rows):
            return execute(runner, plan)

    monkeypatch.setattr(ModelRunner, "execute", noting)
    return rows


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl"])
async def test_ever_new_numbers_of_cells_reach_the_products_as_few(
    checkpoint: Callable[[str], Path], family: str, seen: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two streams beside each other: the same vectors as without the ladder, whatever stands in rows that fill up."""
    monkeypatch.setattr(inputs, "PADDING", torch.nan)
    monkeypatch.setattr(padding, "PIXELS", torch.nan)
    frames = restless(NUM_FRAMES)
    pieces = [[png_file(frame) for frame in frames[start:]] for start in (0, 6)]

    async def run() -> list[np.ndarray]:
        async with engine(checkpoint(family)) as client:
            found = await asyncio.gather(*(from_pieces(client, part, evs=REUSE) for part in pieces))
            return [vectors(events) for events in found]

    filled = await run()
    units = (1, 4)  # tokens, and patches that are joined by four
    on_ladder = {0} | {ladder_rows(count * unit) // unit for count in range(1, 2049) for unit in units}
    assert len(seen) > 5 and seen <= on_ladder
    seen.clear()
    monkeypatch.setattr(model_runner, "choose_row_count", lambda _: exact_rows)
    for got, expected in zip(filled, await run(), strict=True):
        assert not np.isnan(got).any()
        np.testing.assert_allclose(got, expected, atol=1e-5)
    assert len(seen - on_ladder) > 5
