"""How many rows a step computes where kernels are compiled for a number of rows. Owns the ladder of these numbers;
knows no rows' meaning.

On a CPU each product of bfloat16 is compiled anew for each number of rows, at half a millisecond and a quarter of a
megabyte that is kept (`bench/README.md`, "Live sessions"). Packed rows come in ever new numbers, so a step is filled up
to one of a few.
"""

from __future__ import annotations

from collections.abc import Callable

# Up to so many rows: powers of two. Then multiples of `step`, up to `most`; beyond the last, of its step.
FEW_ROWS = 16
STEPS = ((256, 16), (1280, 32), (2048, 64), (4096, 128), (8192, 256))

RowCount = Callable[[int], int]


def choose_row_count(device_type: str) -> RowCount:
    """CUDA's kernels are made for any number of rows."""
    return ladder_rows if device_type == "cpu" else exact_rows


def exact_rows(count: int) -> int:
    return count


def ladder_rows(count: int) -> int:
    """The next number of the ladder. Beyond 128 rows at most an eighth more, beyond 512 a sixteenth.

    Worked example: 1, 2, 4, 8, 16, 32, 48, ..., 256, 288, ..., 1280, 1344: 3 gives 4, 17 gives 32, 1182 gives 1184.
    """
    if count <= FEW_ROWS:
        return 1 << max(0, count - 1).bit_length()
    step = next((step for most, step in STEPS if count <= most), STEPS[-1][1])
    return -(-count // step) * step


def whole_rows(count: int, unit: int) -> int:
    """The next multiple of `unit`, of which `count` is none where the ladder does not know of it: 32 rows in units of 9
    are 36."""
    return -(-count // unit) * unit
