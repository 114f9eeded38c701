"""Steps of one shape, as graphs run them: equal to the dense oracle for any contents of their tables, whatever lies in
page tails (large finite values) and in the rows that only fill the batch up (NaN)."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from attention.flashinfer import FlashInferBackend
from attention.protocol import (
    AttentionBackend,
    AttentionMetadata,
    LayerAttention,
    StaticAttention,
    StaticTables,
    slot_mapping,
)
from attention.sdpa import SdpaBackend
from attention.sdpa_static import visible_rows
from tests.attention import fake_flashinfer
from tests.attention.stepping import DIM, HEADS, KV_HEADS, PAGE, SCALE, Written, draw, expected, step
from tests.attention.test_contract import KINDS, PAGES, POISON, layout_of
from tests.cuda import need_cuda

BATCH, COLUMNS = 6, 10


def test_visible_rows_are_the_worked_example() -> None:
    lens = torch.tensor([4])
    assert visible_rows(lens, 2, 6, LayerAttention())[0].int().tolist() == [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0]]
    near = visible_rows(lens, 2, 6, LayerAttention(window=2))
    assert near[0].int().tolist() == [[0, 1, 1, 0, 0, 0], [0, 0, 1, 1, 0, 0]]


@pytest.fixture(params=["sdpa", "stand_in", pytest.param("flashinfer", marks=pytest.mark.cuda)])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[AttentionBackend, float]:
    if request.param == "sdpa":
        return SdpaBackend(layout_of("cpu", torch.float32)), 1e-5
    if request.param == "stand_in":
        monkeypatch.setitem(sys.modules, "flashinfer", fake_flashinfer)
        monkeypatch.setattr("attention.flashinfer.WORKSPACE_BYTES", 8)
        return FlashInferBackend(layout_of("cpu", torch.float16)), 5e-3
    need_cuda("flashinfer")
    return FlashInferBackend(layout_of("cuda", torch.float16)), 5e-3


def make_tables(backend: AttentionBackend, rows_per_seq: int) -> StaticTables:
    device, scratch = backend.layout.device, backend.layout.scratch_page
    return StaticTables(
        rows_per_seq=rows_per_seq,
        slots=torch.full((BATCH * rows_per_seq,), scratch * PAGE, device=device),
        seq_lens=torch.full((BATCH,), rows_per_seq, device=device),
        page_table=torch.full((BATCH, COLUMNS), scratch, device=device),
    )


def fill(backend: AttentionBackend, tables: StaticTables, live: list[Written]) -> AttentionMetadata:
    """Put the next rows of these into the tables, the rest of the batch being filled up."""
    rows, scratch = tables.rows_per_seq, backend.layout.scratch_page
    table = np.full((BATCH, COLUMNS), scratch)
    for line, s in zip(table, live, strict=False):
        line[:] = s.pages[0]
        line[: len(s.pages)] = s.pages
    lens = np.array([*(s.done + rows for s in live), *[rows] * (BATCH - len(live))])
    metadata = AttentionMetadata(cu_seqlens=np.arange(BATCH + 1) * rows, seq_lens=lens, page_table=table)
    tables.slots.copy_(torch.from_numpy(slot_mapping(metadata, PAGE)))
    tables.seq_lens.copy_(torch.from_numpy(lens))
    tables.page_table.copy_(torch.from_numpy(table))
    return metadata


def replay(
    backend: AttentionBackend, static: StaticAttention, tables: StaticTables, live: list[Written], layer: int
) -> None:
    rows, layout = tables.rows_per_seq, backend.layout
    static.refresh(fill(backend, tables, live))
    q = torch.full((BATCH * rows, HEADS, DIM), torch.nan, dtype=layout.dtype)
    k, v = torch.full((2, BATCH * rows, KV_HEADS, DIM), torch.nan, dtype=layout.dtype)
    for number, s in enumerate(live):
        for buffer, own in ((q, s.q), (k, s.k), (v, s.v)):
            buffer[number * rows : (number + 1) * rows] = own[s.done : s.done + rows]
    out = static.begin().run(layer, *(x.to(layout.device) for x in (q, k, v)), SCALE).cpu()
    for number, s in enumerate(live):
        s.out.append(out[number * rows : (number + 1) * rows])
        s.done += rows


@pytest.mark.parametrize("rows_per_seq", [1, 3])
def test_one_plan_serves_all_steps_of_its_shape(backend: tuple[AttentionBackend, float], rows_per_seq: int) -> None:
    """Sequences join, grow and end; chunks of other shapes are computed in between; poison lies everywhere."""
    built, tolerance = backend
    rng = np.random.default_rng(rows_per_seq)
    for layer, kind in enumerate(KINDS):
        built.memory.fill_(POISON)
        tables = make_tables(built, rows_per_seq)
        static = built.plan_static(tables)
        pages = rng.permutation(PAGES).tolist()
        sequences = [draw(rng, pages, longest=30, dtype=built.layout.dtype) for _ in range(4)]
        for s in sequences:
            s.ranges = ()
            step(built, layer, [(s, s.chunk(rng, len(s.q)))], stranger=s.pages[0])
        while live := [s for s in sequences if s.done + rows_per_seq <= len(s.q)]:
            replay(built, static, tables, live[: int(rng.integers(1, 5))], layer)
        for s in sequences:
            assert (torch.cat(s.out) - expected(s, kind)[: s.done]).abs().max() < tolerance, (layer, kind)


def test_cleared_pages_are_cleared_alone(backend: tuple[AttentionBackend, float]) -> None:
    built, _ = backend
    built.memory.fill_(3.0)
    built.clear([1, built.layout.scratch_page])
    pages = built.memory.reshape(len(KINDS), 2, PAGES + 1, -1)
    assert pages[:, :, [1, PAGES]].abs().max() == 0 and (pages[:, :, 2:PAGES] == 3).all()
