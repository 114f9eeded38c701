"""Products of bfloat16 rows by a weight, plain or packed. Owns finding and calling what an installation compiled of
runner/native, where it had a C compiler; knows no layer, and not whether it pays (runner/linear_forms.py).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import cache

import torch

from attention.compiled import open_compiled

COMPILED = "runner._products"  # of pyproject.toml's ext-modules; not a module that could be imported
SYMBOLS = ("evs_multiply", "evs_norm", "evs_turn", "evs_support")
NO_SUPPORT, VECTORS, TILES = range(3)  # what `evs_support` answers
# Rows up to which vectors are faster than products made for many: soon arithmetic takes longer than reading.
VECTOR_ROWS = 4
# Rows up to which tiles read a weight in order; more are multiplied in squares of so many rows and columns.
SQUARE = 32
# Rows up to which these squares are faster than torch's kernel, which at some shapes leaves a thread idle.
MOST_ROWS = 1536
BLOCKS = (16, 32, 48, 64)  # columns of a packed weight that may lie side by side
PLAIN = 0


class Then(IntEnum):
    """What is done with a product before it is rounded."""

    NOTHING = 0
    SILU = 1
    TIMES = 2
    PLUS = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Products:
    """Of rows by one weight (N, K). find: tells the address of `weight`, plain or in blocks of `block` columns. A row's
    result does not depend on the number of threads or of rows."""

    library: ctypes.CDLL
    weight: torch.Tensor
    find: Callable[[], int]
    width: int
    size: int
    block: int
    by_tiles: bool

    def take(self, rows: int) -> bool:
        """Whether so many rows are multiplied here."""
        if not self.by_tiles:
            return 0 < rows <= VECTOR_ROWS
        return 0 < rows <= (MOST_ROWS if self.block % SQUARE == 0 else SQUARE)

    def multiply(
        self, x: torch.Tensor, bias: torch.Tensor | None, then: Then = Then.NOTHING, other: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x (..., K) of as many rows as are taken, bias (N,) and, for TIMES and PLUS, other (..., N), all bfloat16 ->
        (..., N), rounded once. A plain weight goes with NOTHING only."""
        rows, x = x.numel() // self.size, x.contiguous()
        other = None if other is None else other.contiguous()
        out = x.new_empty(*x.shape[:-1], self.width)
        form = 0 if not self.by_tiles else 1 if rows <= SQUARE else 2
        self.library.evs_multiply(
            x.data_ptr(), self.find(), _address(bias), _address(other), out.data_ptr(), rows,
            self.width, self.size, self.block, then, torch.get_num_threads(), form,
        )  # fmt: skip
        return out


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def plain_products(weight: torch.Tensor) -> Products | None:
    """For a weight (N, K) as it lies, whose data may move; None where that cannot be computed here."""
    library = load_library()
    if library is None or not weight.is_contiguous():
        return None
    return Products(
        library=library,
        weight=weight,
        find=weight.data_ptr,
        width=len(weight),
        size=weight.shape[1],
        block=PLAIN,
        by_tiles=False,
    )


def packed_products(packed: torch.Tensor, weight: torch.Tensor) -> Products | None:
    """For what torch packed of a weight (N, K). How is not written down anywhere, so it is looked up in memory: None
    where it is not in blocks that we read, or nothing can be computed here."""
    library, memory = load_library(), _memory(packed)
    width, size = weight.shape
    if library is None or memory is None or len(memory) != width * size or size % SQUARE:
        return None
    block = find_block(memory, weight)
    if block is None:
        return None
    address = memory.data_ptr()
    return Products(
        library=library,
        weight=packed,
        find=lambda: address,
        width=width,
        size=size,
        block=block,
        by_tiles=library.evs_support() == TILES,
    )


def find_block(memory: torch.Tensor, weight: torch.Tensor) -> int | None:
    """The block b for which memory (N * K,) holds weight (N, K) as (N / b, K / 2, b, 2), judged by the first block and
    the last; None where there is none, or where several would do (rows of zeros) and the other blocks may differ.

    Worked example: the first block of weights (32, 4) in blocks of 16 are rows 0 to 15: the pair of their first two
    numbers, row by row, and then the pair of the last two.
    """
    width, size = weight.shape
    fitting = [
        block
        for block in BLOCKS
        if width % block == 0
        and all(
            torch.equal(_block_of(weight[rows]), memory[rows.start * size : rows.stop * size])
            for rows in (slice(0, block), slice(width - block, width))
        )
    ]
    return fitting[0] if len(fitting) == 1 else None


def _block_of(rows: torch.Tensor) -> torch.Tensor:
    return rows.view(len(rows), -1, 2).transpose(0, 1).flatten()


def _memory(packed: torch.Tensor) -> torch.Tensor | None:
    """All that a packed weight holds, as it lies; None where torch does not tell."""
    try:
        address, count = (int(getattr(torch.ops.mkldnn, name)(packed)) for name in ("data_ptr", "_nbytes"))
    except (AttributeError, RuntimeError):
        return None
    return torch.frombuffer((ctypes.c_char * count).from_address(address), dtype=torch.bfloat16)


@cache
def load_library() -> ctypes.CDLL | None:
    """None where nothing was compiled, or this CPU cannot run it."""
    library = open_compiled(COMPILED, SYMBOLS)
    if library is None:
        return None
    library.evs_multiply.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int64] * 4 + [ctypes.c_int] * 3
    library.evs_multiply.restype = None
    return None if library.evs_support() == NO_SUPPORT else library
