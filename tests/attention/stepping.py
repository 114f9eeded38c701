"""Sequences that are written into a backend's pages chunk by chunk, and what must come out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from attention.masks import first_visible
from attention.protocol import AttentionBackend, AttentionMetadata, LayerAttention, Range
from tests.attention.dense import dense_attention, is_visible

HEADS, KV_HEADS, DIM, PAGE = 4, 2, 64, 4
SCALE = DIM**-0.5


@dataclass(eq=False)
class Written:
    """q (n, H, K), k and v (n, KH, K) of all rows, drawn in advance; pages in order; ranges as a prompt has them."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    pages: list[int]
    ranges: tuple[Range, ...] = ()
    done: int = 0
    out: list[torch.Tensor] = field(default_factory=list)

    def chunk(self, rng: np.random.Generator, most: int) -> int:
        """A random number of rows that cuts no range."""
        stop = min(self.done + int(rng.integers(1, most + 1)), len(self.q))
        for start, end in self.ranges:
            if start < stop < end:
                stop = start if start > self.done else end
        return stop - self.done


def draw(rng: np.random.Generator, pages: list[int], *, longest: int, dtype: torch.dtype) -> Written:
    """A sequence of random length and ranges; takes its pages from the front of `pages`."""
    length = int(rng.integers(1, longest))
    generator = torch.Generator().manual_seed(int(rng.integers(1 << 30)))
    q = torch.randn(length, HEADS, DIM, generator=generator).to(dtype)
    k, v = (torch.randn(length, KV_HEADS, DIM, generator=generator).to(dtype) for _ in range(2))
    cuts = np.sort(rng.choice(length + 1, size=min(4, length // 2 * 2), replace=False)).tolist()
    ranges = tuple((a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=True) if b - a > 1)
    count = -(-length // PAGE)
    taken, pages[:count] = pages[:count], []
    return Written(q=q, k=k, v=v, pages=taken, ranges=ranges)


def step(backend: AttentionBackend, layer: int, chunks: Sequence[tuple[Written, int]], *, stranger: int) -> None:
    """Compute so many rows of each; pages that no row sees any more stand in the table as `stranger`, another's."""
    kind, device = backend.layout.by_layer[layer], backend.layout.device
    width = max(len(s.pages) for s, _ in chunks)
    table = np.full((len(chunks), width), stranger, dtype=np.int64)
    for row, (s, _) in zip(table, chunks, strict=True):
        row[: len(s.pages)] = s.pages
        row[: first_visible(s.done, kind) // PAGE] = stranger
    metadata = AttentionMetadata(
        cu_seqlens=np.cumsum([0, *(count for _, count in chunks)]),
        seq_lens=np.array([s.done + count for s, count in chunks]),
        page_table=table,
        mm_prefix_ranges=tuple(
            tuple((a, b) for a, b in s.ranges if s.done <= a and b <= s.done + count) for s, count in chunks
        ),
    )
    rows = [slice(s.done, s.done + count) for s, count in chunks]
    q, k, v = (torch.cat([getattr(s, x)[r] for (s, _), r in zip(chunks, rows, strict=True)]).to(device) for x in "qkv")
    found = backend.plan(metadata).run(layer, q, k, v, SCALE).cpu()
    for (s, count), out in zip(chunks, found.split([count for _, count in chunks]), strict=True):
        s.out.append(out)
        s.done += count


def expected(s: Written, kind: LayerAttention) -> torch.Tensor:
    size = len(s.q)
    mask = torch.tensor(
        [[is_visible(q, k, s.ranges, kind.window, kind.ranges) for k in range(size)] for q in range(size)]
    )
    return dense_attention(s.q, s.k, s.v, mask, SCALE, kind.softcap)
