"""Norms and turns of bfloat16 rows in one pass over memory each, where runner/native was compiled. Owns calling them;
knows no layer, and leaves to torch what they do not take.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch

from runner.products import load_library

LANES = 16


def norm_rows(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor | None:
    """RMS norm over the last axis of x (S, D) or (S, heads, D), by weight (D,), dense; rounded before it meets the
    weight, and after. None where it is not taken."""
    size, library = x.shape[-1], _library()
    if library is None or not _takes(x, unit=LANES) or weight.dtype != torch.bfloat16 or not weight.is_contiguous():
        return None
    out = torch.empty(x.shape, dtype=x.dtype)
    heads = 1 if x.ndim == 2 else x.shape[1]
    library.evs_norm(
        x.data_ptr(), weight.data_ptr(), out.data_ptr(), len(x), heads, size, x.stride(0), eps, torch.get_num_threads()
    )
    return out


def turn_rows(x: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> bool:
    """Turn pairs (i, i + K / 2) of x (S, heads, K) where they stand; cos and signed_sin: (S, 1, K), dense. False where
    that is not taken, and nothing was done."""
    library = _library()
    if library is None or not _takes(x, unit=2 * LANES):
        return False
    if any(phases.dtype != x.dtype or not phases.is_contiguous() for phases in (cos, signed_sin)):
        return False
    library.evs_turn(
        x.data_ptr(), cos.data_ptr(), signed_sin.data_ptr(), len(x), x.shape[1], x.shape[2], x.stride(0),
        torch.get_num_threads(),
    )  # fmt: skip
    return True


def _takes(x: torch.Tensor, *, unit: int) -> bool:
    """Rows may have gaps between them, and none inside."""
    if x.dtype != torch.bfloat16 or x.device.type != "cpu" or x.ndim not in (2, 3) or x.shape[-1] % unit:
        return False
    inside = (1,) if x.ndim == 2 else (x.shape[-1], 1)
    return x.stride()[1:] == inside


@cache
def _library() -> ctypes.CDLL | None:
    library = load_library()
    if library is None or not hasattr(library, "evs_turn"):  # compiled before there were turns
        return None
    library.evs_norm.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 4 + [ctypes.c_float, ctypes.c_int]
    library.evs_turn.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 4 + [ctypes.c_int]
    library.evs_norm.restype = library.evs_turn.restype = None
    return library
