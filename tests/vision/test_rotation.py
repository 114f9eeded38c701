"""Display matrices: the eight exact ones are applied, the rest ignored."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest

from vision.rotation import parse_display_matrix, turn_upright

ONE = 1 << 16
PICTURE = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)


def matrix(a: float, b: float, c: float, d: float) -> bytes:
    return struct.pack("<9i", *(round(value) for value in (a, b, 0, c, d, 0, 0, 0, 1 << 30)))


def shown_by_definition(picture: np.ndarray, a: int, b: int, c: int, d: int) -> np.ndarray:
    """Each stored pixel (x, y) goes to (a x + c y, b x + d y), moved so that the least place is 0."""
    height, width = picture.shape[:2]
    places = {(x, y): (a * x + c * y, b * x + d * y) for y in range(height) for x in range(width)}
    left, top = (min(place[axis] for place in places.values()) for axis in (0, 1))
    shown = np.zeros((height, width, 3) if a else (width, height, 3), np.uint8)
    for (x, y), (to_x, to_y) in places.items():
        shown[to_y - top, to_x - left] = picture[y, x]
    return shown


@pytest.mark.parametrize(
    "numbers",
    [(1, 0, 0, 1), (0, 1, -1, 0), (-1, 0, 0, -1), (0, -1, 1, 0),
     (-1, 0, 0, 1), (1, 0, 0, -1), (0, 1, 1, 0), (0, -1, -1, 0)],
)  # fmt: skip
def test_exact_matrices_are_applied_as_defined(numbers: tuple[int, int, int, int]) -> None:
    orientation = parse_display_matrix(matrix(*(ONE * number for number in numbers)))
    assert np.array_equal(turn_upright(PICTURE, orientation), shown_by_definition(PICTURE, *numbers))


def test_scale_does_not_matter() -> None:
    assert parse_display_matrix(matrix(0, ONE // 2, -ONE // 2, 0)) == "rot90"


@pytest.mark.parametrize("degrees", [10, 33, 45, 80])
def test_skewed_matrices_are_ignored(degrees: int) -> None:
    c, s = ONE * math.cos(math.radians(degrees)), ONE * math.sin(math.radians(degrees))
    assert parse_display_matrix(matrix(c, s, -s, c)) == "as_stored"


@pytest.mark.parametrize("data", [b"", b"\x00" * 36, b"\x01" * 35])
def test_nonsense_is_ignored(data: bytes) -> None:
    assert parse_display_matrix(data) == "as_stored"
