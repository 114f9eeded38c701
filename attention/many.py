"""Attention of many bfloat16 queries, without masks, as one compiled call. Owns calling attention/native for it; knows
no steps, and leaves to torch what it does not take.
"""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
import torch

from attention.compiled import load_library

FEWEST = 16  # queries of a segment: below, laying out its keys takes longer than it saves
UNIT = 32  # keys, and numbers of one, that tiles hold


class _Batch(ctypes.Structure):
    """`batch` of attention/native/many.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("pages", "q", "keys", "values", "out", "space")),
        *(
            (name, ctypes.c_int64)
            for name in (
                "count", "queries", "length", "heads", "kv_heads", "size", "page_size", "q_stride", "key_stride",
                "value_stride", "causal",
            )
        ),
        ("scale", ctypes.c_float),
    )  # fmt: skip


def attend_segments(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, *, count: int
) -> torch.Tensor | None:
    """q (count * n, H, K), k and v (count * m, KH, K): each of `count` segments of n rows sees its m keys -> as q,
    dense. None where that is not taken."""
    if not _takes(q, k, len(q) // count) or not (_has_dense_heads(k) and _has_dense_heads(v)):
        return None
    return _call(q, k, v, scale, count=count, length=len(k) // count, page_size=0, pages=None)


def attend_pages(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    *,
    pages: np.ndarray,
    page_size: int,
    length: int,
) -> torch.Tensor | None:
    """q (n, H, K), the last n of `length` rows whose keys and values lie in `pages` of keys and values (rows, KH, K);
    each sees those up to its own. None where that is not taken."""
    if not _takes(q, keys, len(q)):
        return None
    return _call(q, keys, values, scale, count=1, length=length, page_size=page_size, pages=pages)


def _takes(q: torch.Tensor, k: torch.Tensor, queries: int) -> bool:
    if q.dtype != torch.bfloat16 or k.dtype != q.dtype or q.device.type != "cpu" or queries < FEWEST:
        return False
    return _has_dense_heads(q) and _has_tiles_for(q.shape[2])


@cache
def _has_tiles_for(size: int) -> bool:
    library = load_library()
    return library is not None and bool(library.evs_can_attend(size, UNIT))


def _has_dense_heads(x: torch.Tensor) -> bool:
    return x.stride()[1:] == (x.shape[2], 1)


def _call(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, *, count: int, length: int, page_size: int,
    pages: np.ndarray | None,
) -> torch.Tensor:  # fmt: skip
    library = load_library()
    assert library is not None
    (rows, heads, size), kv_heads = q.shape, k.shape[1]
    out = torch.empty(q.shape, dtype=q.dtype)
    space = torch.empty(
        2 * count * kv_heads * -(-length // UNIT) * UNIT * size, dtype=q.dtype
    )  # torch aligns to a line
    table = None if pages is None else np.ascontiguousarray(pages, dtype=np.int64)
    batch = _Batch(
        None if table is None else table.ctypes.data, q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(),
        space.data_ptr(), count, rows // count, length, heads, kv_heads, size, page_size, q.stride(0), k.stride(0),
        v.stride(0), pages is not None, scale,
    )  # fmt: skip
    library.evs_attend_many(ctypes.byref(batch), torch.get_num_threads())
    return out
