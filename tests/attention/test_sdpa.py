"""Paged = dense in float64, for random lengths, chunks, page layouts and ranges; nothing leaks from pages that are not
a sequence's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attention import sdpa
from attention.masks import prefix_mask
from attention.protocol import AttentionMetadata, KVLayout
from attention.sdpa import SdpaBackend
from tests.attention.dense import dense_attention

PAGE, HEADS, KV_HEADS, DIM, LAYERS = 4, 6, 2, 8, 2
POISON = 1e4


def make_backend(num_pages: int, dtype: torch.dtype = torch.float32) -> SdpaBackend:
    layout = KVLayout(
        num_layers=LAYERS,
        num_pages=num_pages,
        page_size=PAGE,
        num_kv_heads=KV_HEADS,
        head_dim=DIM,
        dtype=dtype,
        device=torch.device("cpu"),
    )
    return SdpaBackend(layout)


class Sequence:
    """A sequence with all its rows drawn in advance, written chunk by chunk into pages of its own."""

    def __init__(self, generator: torch.Generator, length: int, pages: list[int]) -> None:
        self.q = torch.randn(length, HEADS, DIM, generator=generator)
        self.k = torch.randn(length, KV_HEADS, DIM, generator=generator)
        self.v = torch.randn(length, KV_HEADS, DIM, generator=generator)
        self.pages = pages
        self.done = 0


def run_step(backend: SdpaBackend, layer: int, chunks: list[tuple[Sequence, int]], ranges: tuple = ()) -> torch.Tensor:
    lengths = [count for _, count in chunks]
    width = max(len(s.pages) for s, _ in chunks)
    metadata = AttentionMetadata(
        cu_seqlens=np.cumsum([0, *lengths]),
        seq_lens=np.array([s.done + count for s, count in chunks]),
        page_table=np.array([s.pages + [0] * (width - len(s.pages)) for s, _ in chunks]),
        mm_prefix_ranges=ranges,
    )
    rows = [slice(s.done, s.done + count) for s, count in chunks]
    q, k, v = (torch.cat([getattr(s, x)[r] for (s, _), r in zip(chunks, rows, strict=True)]) for x in "qkv")
    return backend.plan(metadata).run(layer, q, k, v, DIM**-0.5)


@pytest.mark.parametrize("seed", range(12))
def test_paged_equals_dense_in_chunks_and_batches(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages in order, scattered, and in runs of two or three, of which the longer ones are read in place."""
    monkeypatch.setattr(sdpa, "SHORT_RUN_ROWS", 2 * PAGE if seed % 3 == 2 else 128)
    generator = torch.Generator().manual_seed(seed)
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 30, size=4).tolist()
    pages = [list(range(64)), rng.permutation(64).tolist(), _in_runs(rng)][seed % 3]
    backend = make_backend(64)
    backend.memory.fill_(POISON)  # tails of pages and other sequences' pages: finite, and fatal if read
    sequences = []
    for length in lengths:
        count = -(-length // PAGE)
        sequences.append(Sequence(generator, length, pages[:count]))
        pages = pages[count:]
    outputs = {id(s): torch.empty(len(s.q), HEADS, DIM) for s in sequences}
    while live := [s for s in sequences if s.done < len(s.q)]:
        chunks = [(s, int(rng.integers(1, min(9, len(s.q) - s.done) + 1))) for s in live]
        out = run_step(backend, 1, chunks)
        for (s, count), rows in zip(chunks, out.split([c for _, c in chunks]), strict=True):
            outputs[id(s)][s.done : s.done + count] = rows
            s.done += count
    for s in sequences:
        mask = torch.ones(len(s.q), len(s.q)).tril().bool()
        expected = dense_attention(s.q, s.k, s.v, mask, DIM**-0.5)
        assert (outputs[id(s)] - expected).abs().max() < 1e-5


@pytest.mark.parametrize(("start", "count"), [(0, 12), (3, 9)])
def test_ranges_are_bidirectional(start: int, count: int) -> None:
    backend = make_backend(8)
    s = Sequence(torch.Generator().manual_seed(3), 12, [5, 1, 7])
    if start:
        run_step(backend, 0, [(s, start)])
        s.done = start
    ranges = ((4, 7), (8, 11))
    out = run_step(backend, 0, [(s, count)], (ranges,))
    mask = prefix_mask(0, 12, 12, ranges)
    expected = dense_attention(s.q, s.k, s.v, mask, DIM**-0.5)[start:]
    assert (out - expected).abs().max() < 1e-5


def test_layers_keep_apart() -> None:
    backend = make_backend(4)
    generator = torch.Generator().manual_seed(0)
    s, other = Sequence(generator, 5, [0, 1]), Sequence(generator, 5, [0, 1])
    first = run_step(backend, 0, [(s, 4)])
    run_step(backend, 1, [(other, 4)])
    s.done = 4
    last = run_step(backend, 0, [(s, 1)])
    mask = torch.ones(5, 5).tril().bool()
    expected = dense_attention(s.q, s.k, s.v, mask, DIM**-0.5)
    assert (torch.cat((first, last)) - expected).abs().max() < 1e-5


def test_a_batch_of_decodes_is_each_alone() -> None:
    """Bit for bit, on consecutive and on scattered pages."""
    generator = torch.Generator().manual_seed(4)
    backend = make_backend(16)
    backend.memory.fill_(POISON)
    sequences = [Sequence(generator, n, pages) for n, pages in ((9, [0, 1, 2]), (6, [9, 4]), (12, [7, 5, 6]))]
    for s in sequences:
        s.done = len(s.q) - 1
        run_step(backend, 0, [(_rewound(s), s.done)])
    together = run_step(backend, 0, [(s, 1) for s in sequences])
    for s, row in zip(sequences, together, strict=True):
        assert torch.equal(run_step(backend, 0, [(s, 1)])[0], row)


def _in_runs(rng: np.random.Generator) -> list[int]:
    """0 to 63, cut into runs of 1 to 3 that lie in random order."""
    pages, runs = list(range(64)), []
    while pages:
        count = int(rng.integers(1, 4))
        runs.append(pages[:count])
        pages = pages[count:]
    return [page for index in rng.permutation(len(runs)) for page in runs[index]]


def _rewound(s: Sequence) -> Sequence:
    copy = Sequence(torch.Generator(), 0, s.pages)
    copy.q, copy.k, copy.v = s.q, s.k, s.v
    return copy


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_later_chunks_need_no_mask(dtype: torch.dtype) -> None:
    """What came before and the chunk itself are attended apart and joined, also where one outweighs the other."""
    backend = make_backend(32, dtype)
    backend.memory.fill_(POISON)
    s = Sequence(torch.Generator().manual_seed(5), 90, list(range(31, 5, -1)))
    s.k[:40] *= 6.0
    s.q, s.k, s.v = (x.to(dtype) for x in (s.q, s.k, s.v))
    out = []
    for count in (3, 50, 2, 35):
        out.append(run_step(backend, 0, [(s, count)]))
        s.done += count
    expected = dense_attention(s.q, s.k, s.v, torch.ones(90, 90).tril().bool(), DIM**-0.5)
    assert (torch.cat(out).double() - expected).abs().max() < (1e-5 if dtype == torch.float32 else 0.05)


def test_keys_in_bfloat16_stay_near() -> None:
    backend = make_backend(8, torch.bfloat16)
    s = Sequence(torch.Generator().manual_seed(1), 9, [3, 1, 2])
    for name in "qkv":
        setattr(s, name, getattr(s, name).bfloat16())
    out = [run_step(backend, 0, [(s, 8)])]
    s.done = 8
    out.append(run_step(backend, 0, [(s, 1)]))
    expected = dense_attention(s.q, s.k, s.v, torch.ones(9, 9).tril().bool(), DIM**-0.5)
    assert (torch.cat(out).double() - expected).abs().max() < 0.05


def test_a_dtype_it_cannot_keep_is_refused() -> None:
    with pytest.raises(ValueError, match="int8"):
        make_backend(1, torch.int8)
