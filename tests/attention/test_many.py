"""The compiled attention of many queries: equal to the dense oracle, and no row's is moved by other queries, by threads
or by what else lies in memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attention.compiled import load_library
from attention.many import FEWEST, attend_pages, attend_segments
from attention.packed import plan_packed
from attention.protocol import AttentionMetadata, KVLayout
from attention.sdpa import SdpaBackend
from tests.attention.dense import dense_attention

library = load_library()
needs_library = pytest.mark.skipif(
    library is None or not library.evs_can_attend(64, 16), reason="not compiled (no C compiler), or not for this CPU"
)
PAGE = 16


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


class Paged:
    """Keys and values of one sequence on scattered pages; all else in memory is NaN."""

    def __init__(self, length: int, *, heads: int, kv_heads: int, size: int) -> None:
        self.q = draw(length, heads + 3, size, seed=1)[:, :heads]  # as a slice of a fused product
        self.k, self.v = draw(length, kv_heads, size, seed=2), draw(length, kv_heads, size, seed=3)
        self.pages = np.random.default_rng(length).permutation(length // PAGE + 3)
        rows, self.length = np.arange(length), length
        slots = self.pages[rows // PAGE] * PAGE + rows % PAGE
        self.memory = torch.full((2, len(self.pages) * PAGE, kv_heads, size), torch.nan).bfloat16()
        self.memory[0, slots], self.memory[1, slots] = self.k, self.v

    def attend(self, start: int, stop: int) -> torch.Tensor:
        """Rows [start, stop) as a chunk."""
        found = attend_pages(
            self.q[start:stop], *self.memory, self.q.shape[2] ** -0.5, pages=self.pages, page_size=PAGE, length=stop
        )
        assert found is not None
        return found


@needs_library
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(14, 2, 64), (3, 3, 32), (4, 1, 256)])
@pytest.mark.parametrize(("start", "length"), [(0, 16), (0, 200), (133, 181), (1, 33)])
def test_chunks_equal_the_dense_oracle(heads: int, kv_heads: int, size: int, start: int, length: int) -> None:
    paged = Paged(length, heads=heads, kv_heads=kv_heads, size=size)
    mask = torch.ones(length, length).tril().bool()[start:]
    expected = dense_attention(paged.q[start:], paged.k, paged.v, mask, size**-0.5)
    error = (paged.attend(start, length).double() - expected).abs().flatten(1).max(1).values
    assert (error < 0.01 * expected.abs().flatten(1).max(1).values).all()


@needs_library
def test_chunked_is_whole_on_any_number_of_threads() -> None:
    """Bit for bit, wherever it is cut."""
    paged, threads = Paged(300, heads=4, kv_heads=2, size=64), torch.get_num_threads()
    whole = paged.attend(0, 300)
    try:
        for count, cut in ((1, 150), (3, 261), (2, 32)):
            torch.set_num_threads(count)
            assert torch.equal(torch.cat((paged.attend(0, cut), paged.attend(cut, 300))), whole)
    finally:
        torch.set_num_threads(threads)


@needs_library
def test_a_nan_reaches_the_rows_that_see_it() -> None:
    paged = Paged(100, heads=2, kv_heads=2, size=32)
    clean = paged.attend(0, 100)
    paged.memory[0, paged.pages[3] * PAGE + 2, 1, 7] = torch.nan  # row 50, head 1
    broken = paged.attend(0, 100)
    assert broken[50:, 1].isnan().all() and torch.equal(broken[:50], clean[:50])
    assert torch.equal(broken[:, 0], clean[:, 0])


@needs_library
@pytest.mark.parametrize(("queries", "keys", "count"), [(64, 64, 5), (50, 131, 3), (16, 7, 2)])
def test_segments_see_themselves(queries: int, keys: int, count: int) -> None:
    """Also with keys of their own, of another number."""
    q, k, v = draw(count * queries, 4, 64, seed=4), draw(count * keys, 2, 64, seed=5), draw(count * keys, 2, 64, seed=6)
    found = attend_segments(q, k, v, 0.125, count=count)
    assert found is not None
    for got, one_q, one_k, one_v in zip(
        found.split(queries), q.split(queries), k.split(keys), v.split(keys), strict=True
    ):
        expected = dense_attention(one_q, one_k, one_v, torch.ones(queries, keys).bool(), 0.125)
        assert (got.double() - expected).abs().max() < 0.01 * expected.abs().max()


@needs_library
def test_a_step_and_an_encoder_go_through_it() -> None:
    """The same bits as the calls themselves, between other sequences of a step, and as slots of a packed batch."""
    paged = Paged(90, heads=4, kv_heads=2, size=64)
    layout = KVLayout(
        num_layers=1, num_pages=len(paged.pages) + 1, page_size=PAGE, num_kv_heads=2, head_dim=64,
        dtype=torch.bfloat16, device=torch.device("cpu"),
    )  # fmt: skip
    backend, other, lone = SdpaBackend(layout), draw(1, 4, 64, seed=7), len(paged.pages)
    metadata = AttentionMetadata(
        cu_seqlens=np.array([0, 1, 91]), seq_lens=np.array([1, 90]),
        page_table=np.stack((np.full(len(paged.pages), lone), paged.pages)),
    )  # fmt: skip
    k, v = (torch.cat((draw(1, 2, 64, seed=8), rows)) for rows in (paged.k, paged.v))
    out = backend.plan(metadata).run(0, torch.cat((other, paged.q)), k, v, 0.125)
    assert torch.equal(out[1:], paged.attend(0, 90))
    packed = plan_packed(np.array([0, 45, 90]))(paged.q, paged.q, paged.q, 0.125)
    expected = attend_segments(paged.q, paged.q, paged.q, 0.125, count=2)
    assert expected is not None and torch.equal(packed, expected)


def test_what_is_not_taken() -> None:
    """Few rows, other numbers, heads that fill no tile."""
    for q in (draw(FEWEST - 1, 2, 64, seed=1), draw(32, 2, 64, seed=1).float(), draw(32, 2, 40, seed=1)):
        assert attend_segments(q, q, q, 1.0, count=1) is None
        assert attend_pages(q, q, q, 1.0, pages=np.arange(8), page_size=4, length=len(q)) is None
