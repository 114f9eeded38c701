"""What every backend must do: equal the dense oracle for random lengths, chunks, ranges, windows and page layouts, and
read nothing but a sequence's own rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from attention.flashinfer import FlashInferBackend
from attention.protocol import AttentionBackend, AttentionMetadata, KVLayout, LayerAttention
from attention.sdpa import SdpaBackend
from tests.attention.stepping import DIM, KV_HEADS, PAGE, Written, draw, expected, step
from tests.cuda import need_cuda

KINDS = (
    LayerAttention(),
    LayerAttention(window=3),
    LayerAttention(window=9),
    LayerAttention(window=3, ranges="in_window"),
    LayerAttention(window=9, softcap=2.0),
    LayerAttention(softcap=2.0),
)
PAGES = 64
POISON = 1e4
Make = Callable[[], AttentionBackend]


def layout_of(device: str, dtype: torch.dtype) -> KVLayout:
    return KVLayout(
        num_layers=len(KINDS), num_pages=PAGES, page_size=PAGE, num_kv_heads=KV_HEADS, head_dim=DIM, dtype=dtype,
        device=torch.device(device), layers=KINDS,
    )  # fmt: skip


@pytest.fixture(params=["sdpa", pytest.param("flashinfer", marks=pytest.mark.cuda)])
def make(request: pytest.FixtureRequest) -> tuple[Make, float]:
    """A backend whose memory is poison: finite, and fatal if read; and how far from the oracle it may be."""

    def flashinfer() -> FlashInferBackend:
        backend = FlashInferBackend(layout_of("cuda", torch.float16))
        backend.memory.fill_(POISON)
        return backend

    def sdpa() -> SdpaBackend:
        backend = SdpaBackend(layout_of("cpu", torch.float32))
        backend.memory.fill_(POISON)
        return backend

    if request.param == "flashinfer":
        need_cuda("flashinfer")
        return flashinfer, 5e-3  # it computes in half precision
    return sdpa, 1e-5


def draw_all(rng: np.random.Generator, *, scattered: bool, dtype: torch.dtype = torch.float32) -> list[Written]:
    pages = rng.permutation(PAGES - 1).tolist() if scattered else list(range(PAGES - 1))
    return [draw(rng, pages, longest=36, dtype=dtype) for _ in range(4)]


@pytest.mark.parametrize("layer", range(len(KINDS)))
@pytest.mark.parametrize("seed", range(3))
def test_random_steps_equal_the_dense_oracle(make: tuple[Make, float], layer: int, seed: int) -> None:
    build, tolerance = make
    backend, rng = build(), np.random.default_rng([seed, layer])
    sequences = draw_all(rng, scattered=seed > 0, dtype=backend.layout.dtype)
    while live := [s for s in sequences if s.done < len(s.q)]:
        step(backend, layer, [(s, s.chunk(rng, 9)) for s in live], stranger=PAGES - 1)
    for s in sequences:
        assert (torch.cat(s.out) - expected(s, KINDS[layer])).abs().max() < tolerance


def test_one_plan_serves_all_layers(make: tuple[Make, float]) -> None:
    """Layers that see differently run in one step, and keep their keys apart."""
    build, tolerance = make
    backend = build()
    dtype = backend.layout.dtype
    rows = [draw(np.random.default_rng(9), [5, 1, 7, 2, 4, 8, 3, 0], longest=30, dtype=dtype) for _ in KINDS]
    metadata = AttentionMetadata(
        cu_seqlens=np.array([0, len(rows[0].q)]), seq_lens=np.array([len(rows[0].q)]),
        page_table=np.array([rows[0].pages]), mm_prefix_ranges=(rows[0].ranges,),
    )  # fmt: skip
    planned = backend.plan(metadata)
    for layer, (kind, s) in enumerate(zip(KINDS, rows, strict=True)):
        s.v = s.v + layer
        out = planned.run(layer, *(x.to(backend.layout.device) for x in (s.q, s.k, s.v)), DIM**-0.5)
        assert (out.cpu() - expected(s, kind)).abs().max() < tolerance


def test_layers_must_all_be_described() -> None:
    with pytest.raises(ValueError, match="2 layers are described, and there are 3"):
        KVLayout(
            num_layers=3, num_pages=1, page_size=1, num_kv_heads=1, head_dim=1, dtype=torch.float32,
            device=torch.device("cpu"), layers=KINDS[:2],
        )  # fmt: skip
