"""A step is run for the states that somebody reads, and its last layer for no others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from attention.protocol import AttentionMetadata, KVLayout
from attention.sdpa import SdpaBackend
from runner.families.base import Family, VisualRows
from runner.plan import RowsWork
from runner.pooling import Pooled
from runner.sequence import Sequence
from runner.states_read import states_read
from tests.harness import local_engine
from tests.runner.test_page_keys import make_prompt

LENGTH, PAGE = 12, 4


def make_work(start: int, stop: int, *, samples: bool, goal: Pooled | None = None, guessed: int = 0) -> RowsWork:
    sequence = Sequence(request_id="r", index=0, arrival=0, prompt=make_prompt(LENGTH), items=(), goal=goal)
    return RowsWork(sequence=sequence, start=start, stop=stop, samples=samples, draft=(7,) * guessed)


def test_the_worked_example() -> None:
    works = (make_work(0, 4, samples=False), make_work(11, 12, samples=True), make_work(9, 12, samples=True))
    read = states_read(works, "last")
    assert read.counts == (0, 1, 1)
    assert read.rows is not None and read.rows.tolist() == [4, 7]
    assert read.samples.tolist() == [0, 1]


def test_drafted_rows_are_all_read() -> None:
    read = states_read((make_work(11, 14, samples=True, guessed=2),), "last")
    assert read.rows is None and read.samples.tolist() == [0, 1, 2]


def test_pooled_rows_are_read_as_pooling_wants_them() -> None:
    """The mean reads every row; the last row is read once it comes; nothing is drawn from either."""
    chunk, end = (make_work(*rows, samples=False, goal=Pooled()) for rows in ((0, 5), (5, LENGTH)))
    mean, last = (states_read((chunk, end, make_work(3, 12, samples=True)), how) for how in ("mean", "last"))
    assert mean.counts == (5, 7, 1) and mean.samples.tolist() == [12]
    assert mean.rows is not None and mean.rows.tolist() == [*range(12), 20]
    assert last.counts == (0, 1, 1) and last.samples.tolist() == [1]
    assert last.rows is not None and last.rows.tolist() == [11, 20]


def run_forward(family: Family, wanted: torch.Tensor | None) -> torch.Tensor:
    """One chunk of random rows, two of them cells with planes."""
    shape = family.shape
    layout = KVLayout(
        num_layers=shape.num_layers, num_pages=LENGTH // PAGE, page_size=PAGE, num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim, dtype=torch.float32, device=torch.device("cpu"), layers=shape.layers,
    )  # fmt: skip
    metadata = AttentionMetadata(
        cu_seqlens=np.array([0, LENGTH]), seq_lens=np.array([LENGTH]), page_table=np.arange(LENGTH // PAGE)[None]
    )
    torch.manual_seed(0)
    embeds = torch.randn(LENGTH, shape.hidden_size)
    planes = tuple(torch.randn(2, shape.hidden_size) for _ in range(shape.num_planes))
    visual = VisualRows(rows=torch.tensor([3, 4]), planes=planes)
    positions = torch.arange(LENGTH).expand(shape.rope_axes, -1).contiguous()
    return family.forward(embeds, positions, visual, SdpaBackend(layout).plan(metadata), wanted)


@pytest.mark.parametrize("name", ["gemma3", "qwen2_5_vl", "qwen3_vl"])  # each kind of decoder, and planes
@torch.inference_mode()
def test_wanted_rows_are_those_of_all(checkpoint: Callable[[str], Path], name: str) -> None:
    """The same states, in the order asked for, with the last MLP run for them alone; none at all are fine, too."""
    entered = list[int]()
    with local_engine(checkpoint(name), dtype="float32") as local:
        family = local.assembled.loaded.family
        down = family._text.layers[-1].mlp.down_proj  # type: ignore[attr-defined]
        down.register_forward_hook(lambda _module, args, _out: entered.append(len(args[0])))
        every, some, none = (
            run_forward(family, rows) for rows in (None, torch.tensor([11, 3]), torch.zeros(0, dtype=torch.int64))
        )
    torch.testing.assert_close(some, every[[11, 3]], rtol=1e-4, atol=1e-5)
    assert none.shape == (0, family.shape.hidden_size)
    narrowed = family.shape.num_planes < family.shape.num_layers
    assert entered == ([LENGTH, 2, 0] if narrowed else [LENGTH] * 3)
