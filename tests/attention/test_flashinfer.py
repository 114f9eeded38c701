"""What the flashinfer backend asks of the package, without a card: by a stand-in that does what the documentation says,
and against the signatures of the package where it is installed."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys

import numpy as np
import pytest
import torch

from attention.flashinfer import FP8, FlashInferBackend
from attention.page_lists import page_lists
from attention.protocol import AttentionMetadata, KVLayout, LayerAttention
from tests.attention import fake_flashinfer
from tests.attention.stepping import DIM, KV_HEADS, PAGE, draw, expected, step
from tests.attention.test_contract import KINDS, PAGES, POISON, draw_all, layout_of
from tests.attention.test_static import BATCH, fill, make_tables, replay


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> list:
    monkeypatch.setitem(sys.modules, "flashinfer", fake_flashinfer)
    monkeypatch.setattr("attention.flashinfer.WORKSPACE_BYTES", 8)
    fake_flashinfer.asked.clear()
    return fake_flashinfer.asked


def test_page_lists_are_the_worked_example() -> None:
    metadata = AttentionMetadata(
        cu_seqlens=np.array([0, 1, 4]), seq_lens=np.array([6, 3]), page_table=np.array([[7, 2], [5, 0]])
    )
    lists = page_lists(metadata, 4, LayerAttention())
    assert lists.rows_indptr.tolist() == [0, 1, 4]
    assert (lists.pages_indptr.tolist(), lists.pages.tolist()) == ([0, 2, 3], [7, 2, 5])
    assert lists.last_page_len.tolist() == [2, 3]
    assert lists.mask is None
    near = page_lists(metadata, 4, LayerAttention(window=2))
    assert (near.pages_indptr.tolist(), near.pages.tolist()) == ([0, 1, 2], [2, 5])
    assert near.last_page_len.tolist() == [2, 3]


@pytest.mark.parametrize("layer", range(len(KINDS)))
@pytest.mark.parametrize("dtype", [torch.float16, FP8])
def test_the_stand_in_gives_what_the_oracle_gives(package: list, layer: int, dtype: torch.dtype) -> None:
    """Random chunks, ranges, windows and pages; FP8 keys round by a sixteenth."""
    backend = FlashInferBackend(layout_of("cpu", dtype))
    backend.memory.view(torch.uint8).fill_(0x60)  # a large finite number in either dtype
    rng = np.random.default_rng([7, layer])
    sequences = draw_all(rng, scattered=True, dtype=torch.float16)
    while live := [s for s in sequences if s.done < len(s.q)]:
        step(backend, layer, [(s, s.chunk(rng, 9)) for s in live], stranger=PAGES - 1)
    for s in sequences:
        assert (torch.cat(s.out) - expected(s, KINDS[layer])).abs().max() < (5e-3 if dtype == torch.float16 else 0.25)
    assert {name for name, method, _, _ in package if method == "run"} >= {"BatchPrefillWithPagedKVCacheWrapper"}


def test_decodes_are_planned_once_a_step_and_kind_in_buffers_that_stay(package: list) -> None:
    kinds = (LayerAttention(), LayerAttention(window=9), LayerAttention())
    layout = KVLayout(
        num_layers=3, num_pages=PAGES, page_size=PAGE, num_kv_heads=KV_HEADS, head_dim=DIM, dtype=torch.float16,
        device=torch.device("cpu"), layers=kinds,
    )  # fmt: skip
    backend = FlashInferBackend(layout)
    tables = make_tables(backend, 1)
    static = backend.plan_static(tables)
    rng = np.random.default_rng(0)
    pages = list(range(PAGES))
    sequences = [draw(rng, pages, longest=30, dtype=torch.float16) for _ in range(2)]
    addresses = set()
    for length in (5, 9, 13):
        for s in sequences:
            s.done = length
        before = sum(method == "plan" for _, method, _, _ in package)
        static.refresh(fill(backend, tables, sequences))
        planned = static.begin()
        for layer in range(3):
            planned.run(layer, torch.randn(BATCH, 4, DIM).half(), *torch.randn(2, BATCH, KV_HEADS, DIM).half(), 0.1)
        assert sum(method == "plan" for _, method, _, _ in package) - before == 2
        addresses.add(tuple(x.data_ptr() for w in static._wrappers.values() for x in w.buffers.values()))
    assert len(addresses) == 1
    assert {name for name, _, _, _ in package} == {"BatchDecodeWithPagedKVCacheWrapper"}
    with pytest.raises(ValueError, match="are called as"):
        planned.run(0, torch.randn(BATCH, 4, DIM).half(), *torch.randn(2, BATCH, KV_HEADS, DIM).half(), 0.2)


def test_fp8_keeps_what_it_can_hold(package: list) -> None:
    backend = FlashInferBackend(layout_of("cpu", FP8))
    rows = torch.full((1, KV_HEADS, DIM), 1e4)
    backend.write(0, torch.tensor([5]), rows, -rows)
    assert backend.memory[0, 0].float().max() == 448 and backend.memory[0, 1].float().min() == -448


def test_what_it_cannot_keep_is_refused(package: list) -> None:
    with pytest.raises(ValueError, match=r"float32 with 64"):
        FlashInferBackend(layout_of("cpu", torch.float32))


def test_calls_fit_the_installed_package(package: list, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every way in which the backend calls the package binds to the real signatures."""
    backend = FlashInferBackend(layout_of("cpu", torch.float16))
    s = draw(np.random.default_rng(3), list(range(PAGES)), longest=36, dtype=torch.float16)
    while s.done < len(s.q):
        step(backend, 1, [(s, s.chunk(np.random.default_rng(s.done), 9))], stranger=PAGES - 1)
    for rows in (1, 2):
        tables = make_tables(backend, rows)
        s.done = 1
        replay(backend, backend.plan_static(tables), tables, [s], 1)
    calls = list(package)
    assert {(name[:8], method) for name, method, _, _ in calls} >= {("BatchPre", "plan"), ("BatchPre", "run")}
    monkeypatch.delitem(sys.modules, "flashinfer")
    if importlib.util.find_spec("flashinfer") is None:
        if os.environ.get("FAIL_WITHOUT_CUDA") == "1":
            pytest.fail("flashinfer is not installed, and FAIL_WITHOUT_CUDA=1 promises it")
        pytest.skip("flashinfer is not installed: there are no signatures to check against")
    real = importlib.import_module("flashinfer")
    for name, method, args, named in calls:
        inspect.signature(getattr(getattr(real, name), method)).bind(None, *args, **named)


def test_poison_is_finite() -> None:
    """The patterns that memory is filled with are numbers, and fatal if read."""
    pattern = torch.full((2,), 0x60, dtype=torch.uint8)
    for dtype in (torch.float16, FP8):
        value = float(pattern.view(dtype)[0])
        assert np.isfinite(value) and value > 30
    assert POISON > 1e3
