"""The compiled attention of lone rows: equal to the dense oracle for any heads, pages and windows; it writes what it
must and is moved by nothing else."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from attention.lone import LoneStep, first_rows, lone_rows
from attention.protocol import AttentionMetadata, KVLayout, LayerAttention, slot_mapping
from attention.sdpa import SdpaBackend
from tests.attention.dense import dense_attention

LENGTHS = (1, 16, 129, 300)
KINDS = (LayerAttention(), LayerAttention(window=40))
SHAPES = (
    (2, 7, 64, 16),
    (1, 20, 32, 16),
    (3, 1, 96, 48),
    (2, 2, 256, 32),
)  # KV heads, their queries, numbers, page size


def make_backend(kv_heads: int, size: int, page_size: int) -> SdpaBackend:
    layout = KVLayout(
        num_layers=len(KINDS), num_pages=40, page_size=page_size, num_kv_heads=kv_heads, head_dim=size,
        dtype=torch.bfloat16, device=torch.device("cpu"), layers=KINDS,
    )  # fmt: skip
    backend = SdpaBackend(layout)
    if lone_rows(backend.memory, layout) is None:
        pytest.skip("nothing was compiled, or this CPU has no tiles of bfloat16")
    return backend


class Drawn:
    """Sequences of LENGTHS whose keys, but for the last, lie on scattered pages; all else in memory is NaN."""

    def __init__(self, kv_heads: int, group: int, size: int, page_size: int) -> None:
        self.backend = make_backend(kv_heads, size, page_size)
        self.size, rng = size, torch.Generator().manual_seed(size + group)
        self.q = torch.randn(len(LENGTHS), kv_heads * group, size, generator=rng).bfloat16()
        pages = np.random.default_rng(size).permutation(40)
        ends = np.cumsum([0, *(-(-length // page_size) for length in LENGTHS)])
        table = [pages[start:end] for start, end in pairwise(ends)]
        self.pages = np.array([np.pad(row, (0, len(table[-1]) - len(row)), mode="edge") for row in table])
        shape = (len(KINDS), max(LENGTHS), kv_heads, size)
        self.keys = [torch.randn(shape, generator=rng).bfloat16() for _ in LENGTHS]
        self.values = [torch.randn(shape, generator=rng).bfloat16() for _ in LENGTHS]
        self.backend.memory.fill_(torch.nan)
        for number, length in enumerate(LENGTHS):
            slots = self.slots(number, length - 1)
            for layer in range(len(KINDS)):
                self.backend.memory[layer, 0, slots] = self.keys[number][layer, : length - 1]
                self.backend.memory[layer, 1, slots] = self.values[number][layer, : length - 1]

    def slots(self, number: int, count: int) -> np.ndarray:
        size, rows = self.backend.layout.page_size, np.arange(count)
        found: np.ndarray = self.pages[number, rows // size] * size + rows % size
        return found

    def run(self, layer: int, numbers: list[int]) -> torch.Tensor:
        """The last row of some of the sequences, which stands between others' numbers."""
        metadata = AttentionMetadata(
            cu_seqlens=np.arange(len(numbers) + 1),
            seq_lens=np.array([LENGTHS[n] for n in numbers]),
            page_table=self.pages[numbers],
        )
        planned = self.backend.plan(metadata)
        assert isinstance(planned, LoneStep)
        k = torch.stack([self.keys[n][layer, LENGTHS[n] - 1] for n in numbers])
        v = torch.stack([self.values[n][layer, LENGTHS[n] - 1] for n in numbers])
        fused = torch.cat((self.q[numbers], k, v), dim=1)
        q, k, v = fused.split([self.q.shape[1], k.shape[1], v.shape[1]], dim=1)
        return planned.run(layer, q, k, v, self.size**-0.5)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layer", range(len(KINDS)))
def test_equals_the_dense_oracle_and_writes_its_rows(shape: tuple[int, int, int, int], layer: int) -> None:
    drawn = Drawn(*shape)
    out = drawn.run(layer, [0, 1, 2, 3])
    for number, length in enumerate(LENGTHS):
        keys, values = drawn.keys[number][layer, :length], drawn.values[number][layer, :length]
        mask = torch.arange(length)[None] >= first_rows(np.array([length]), KINDS[layer])[0]
        expected = dense_attention(drawn.q[number : number + 1], keys, values, mask, drawn.size**-0.5)
        error = (out[number].double() - expected[0]).abs().max()
        assert error < 0.01 * expected.abs().max(), (length, error)
        memory, slots = drawn.backend.memory, drawn.slots(number, length)
        assert torch.equal(memory[layer, 0, slots], keys) and torch.equal(memory[layer, 1, slots], values)
    written = sum(LENGTHS) * len(KINDS) * 2 - 2 * len(LENGTHS)  # but for the last rows of the layer that did not run
    assert (~drawn.backend.memory.isnan().flatten(3).any(-1)).sum() == written


def test_a_row_is_the_same_alone_and_on_any_number_of_threads() -> None:
    """Bit for bit."""
    drawn, threads = Drawn(*SHAPES[0]), torch.get_num_threads()
    together = drawn.run(0, [0, 1, 2, 3])
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            for number in range(len(LENGTHS)):
                assert torch.equal(drawn.run(0, [number])[0], together[number])
    finally:
        torch.set_num_threads(threads)


def test_a_nan_among_its_own_keys_is_told_and_stays_there() -> None:
    """Were it hidden, a broken model would answer fluently; were it spread, it would break its neighbours."""
    drawn = Drawn(*SHAPES[0])
    clean = drawn.run(0, [0, 1, 2, 3])
    drawn.backend.memory[0, 0, drawn.slots(2, 60)[59], 1, 5] = torch.nan
    broken = drawn.run(0, [0, 1, 2, 3])
    heads = drawn.q.shape[1] // 2
    assert broken[2, heads:].isnan().all() and torch.equal(broken[2, :heads], clean[2, :heads])
    assert torch.equal(broken[[0, 1, 3]], clean[[0, 1, 3]])


def test_one_large_score_after_many_small_ones() -> None:
    """Older sums shrink to nothing when a key far along outweighs them."""
    drawn = Drawn(*SHAPES[0])
    at = drawn.slots(3, 280)[279]
    drawn.backend.memory[0, 0, at] = 30 * drawn.q[3, :1]
    out = drawn.run(0, [3])
    assert torch.equal(out[0, 0], drawn.backend.memory[0, 1, at, 0])


def test_first_rows_worked_example() -> None:
    assert first_rows(np.array([11, 2]), LayerAttention(window=4)).tolist() == [7, 0]


def test_other_steps_and_layers_are_left_to_torch() -> None:
    backend = make_backend(2, 64, 16)
    metadata = AttentionMetadata(cu_seqlens=np.array([0, 2]), seq_lens=np.array([5]), page_table=np.array([[0]]))
    assert slot_mapping(metadata, 16).tolist() == [3, 4] and not isinstance(backend.plan(metadata), LoneStep)
    capped = KVLayout(
        num_layers=1, num_pages=1, page_size=16, num_kv_heads=2, head_dim=64, dtype=torch.bfloat16,
        device=torch.device("cpu"), layers=(LayerAttention(softcap=2.0),),
    )  # fmt: skip
    assert lone_rows(backend.memory, capped) is None
