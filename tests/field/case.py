"""One clip as it arrives, and what must become of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["accept", "reject", "either"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldCase:
    """accept: an answer with exactly these pictures. reject: a refusal that says what to do. either: one of the two,
    and an accepted clip shows none but these pictures.

    name: of the file, which may lie about its kind. make: its bytes, the same at every call.
    numbers: what each picture of the clip says, in order, when every one is taken; None where they say nothing.
    times_s: when each is shown, counted from the first; None where the rate alone says it. rate_fps: the true rate.
    duration_s: to the end of the last picture. size: (height, width) as shown. upright: corners are red, green / blue,
    white. tolerance: of the corners' colours. size_class: "big" ones take much memory or time to make.
    """

    name: str
    make: Callable[[], bytes]
    outcome: Outcome = "accept"
    numbers: tuple[int, ...] | None = None
    times_s: tuple[float, ...] | None = None
    rate_fps: float | None = None
    duration_s: float | None = None
    size: tuple[int, int] | None = None
    upright: bool = False
    tolerance: int = 40
    size_class: Literal["small", "big"] = "small"

    def expected_times_s(self) -> tuple[float, ...] | None:
        if self.times_s is None and self.rate_fps is not None and self.numbers is not None:
            return tuple(place / self.rate_fps for place in range(len(self.numbers)))
        return self.times_s


def count(stop: int) -> tuple[int, ...]:
    return tuple(range(stop))


def numbered(name: str, make: Callable[[], bytes], frames: int, *, rate_fps: float | None = 30.0) -> FieldCase:
    """An ordinary clip of 128x96 numbered pictures."""
    return FieldCase(
        name=name, make=make, numbers=count(frames), rate_fps=rate_fps, size=(96, 128), upright=True,
        duration_s=frames / rate_fps if rate_fps else None,
    )  # fmt: skip


def patch_all(data: bytes, changes: Sequence[tuple[int, bytes]]) -> bytes:
    """The bytes with others written over them at these offsets."""
    changed = bytearray(data)
    for offset, new in changes:
        changed[offset : offset + len(new)] = new
    return bytes(changed)
