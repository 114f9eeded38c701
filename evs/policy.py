"""What a request asks of Efficient Video Sampling: the method and its numbers. Owns their meaning, bounds, defaults and
cache key; knows nothing of how cells are scored, nor of servers and their ceilings."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

from evs.count import check_rate

Method = Literal["none", "gate", "evs", "uniform", "random"]
Encoder = Literal["full", "skip", "reuse"]

EVS_VERSION = 1
"""Part of every cache key: raise it with any change that makes a policy keep other cells of the same pixels."""

MEANINGFUL: dict[Method, frozenset[str]] = {
    "none": frozenset({"encoder"}),
    "gate": frozenset({"rate", "threshold", "refresh", "scene_cut", "floor", "encoder"}),
    "evs": frozenset({"rate", "encoder"}),
    "uniform": frozenset({"rate", "encoder"}),
    "random": frozenset({"rate", "seed", "encoder"}),
}
"""Which fields each method reads; the others stay None."""

ENCODERS: dict[Method, tuple[Encoder, ...]] = {
    "none": ("full",),
    "gate": ("reuse", "full", "skip"),
    "evs": ("full",),
    "uniform": ("full", "skip", "reuse"),
    "random": ("full", "skip", "reuse"),
}
"""Which encoder modes each method can run with, the default first."""

NEED_RATE: frozenset[Method] = frozenset({"evs", "uniform", "random"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EvsPolicy:
    """One method with the numbers it reads; what it does not read is None. Made from a request by `make_policy`.

    rate: share of cells to drop, 0 <= rate < 1. With `gate` an optional cap, None for no cap.
    threshold: `gate` keeps a cell that differs by more than this on a 0..1 scale; 0..1.
    refresh: `gate` keeps every refresh-th slot whole; at least 1.
    scene_cut: `gate` keeps a slot whole when more than this share of its cells pass; 0..1.
    floor: `gate` keeps at least this many cells of a slot; at least 1.
    encoder: whether dropped cells enter the vision encoder.
    seed: of `random`; 0 <= seed < 2**64.
    """

    method: Method
    encoder: Encoder
    rate: float | None = None
    threshold: float | None = None
    refresh: int | None = None
    scene_cut: float | None = None
    floor: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        _check_one_of("method", self.method, get_args(Method))
        _check_one_of(f"encoder of method {self.method!r}", self.encoder, ENCODERS[self.method])
        for name in _NUMBERS:
            value, read = getattr(self, name), name in MEANINGFUL[self.method]
            if value is None and read and (name != "rate" or self.method in NEED_RATE):
                raise ValueError(f"method {self.method!r} needs a value for {name}")
            if value is not None and not read:
                readers = [method for method, names in MEANINGFUL.items() if name in names]
                raise ValueError(f"{name}={value!r} means nothing with method {self.method!r}; {readers} read it")
            if value is not None:
                _check_number(name, value)

    def key(self) -> tuple[tuple[str, str | float | None], ...]:
        """Every field by name, and the version: equal keys mean equal picks from equal pixels."""
        return (("evs", EVS_VERSION), *((field.name, getattr(self, field.name)) for field in fields(self)))


_NUMBERS = ("rate", "threshold", "refresh", "scene_cut", "floor", "seed")
_SHARES = ("threshold", "scene_cut")
_LEAST: dict[str, int] = {"refresh": 1, "floor": 1, "seed": 0}


def _check_one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {list(allowed)}, got {value!r}")


def _check_number(name: str, value: float) -> None:
    wanted = (int,) if name in _LEAST else (int, float)
    if isinstance(value, bool) or not isinstance(value, wanted):
        raise ValueError(f"{name} must be {'an integer' if name in _LEAST else 'a number'}, got {value!r}")
    if name == "rate":
        check_rate(value)
    elif name in _SHARES and not 0 <= value <= 1:
        raise ValueError(f"{name} must be between 0 and 1, got {value}")
    elif name in _LEAST and not _LEAST[name] <= value < 2**64:
        raise ValueError(f"{name} must be at least {_LEAST[name]} and below 2**64, got {value}")


def make_policy(
    method: Method,
    *,
    rate: float | None = None,
    threshold: float | None = None,
    refresh: int | None = None,
    encoder: Encoder | None = None,
    seed: int | None = None,
    scene_cut: float | None = None,
    floor: int | None = None,
) -> EvsPolicy:
    """The policy of what was given, the rest filled with the method's defaults.

    Raises ValueError for a value out of bounds, and for one that the method does not read.
    """
    _check_one_of("method", method, get_args(Method))

    read = MEANINGFUL[method]
    return EvsPolicy(
        method=method,
        encoder=ENCODERS[method][0] if encoder is None else encoder,
        rate=rate,
        threshold=3 / 255 if threshold is None and "threshold" in read else threshold,
        refresh=32 if refresh is None and "refresh" in read else refresh,
        scene_cut=0.6 if scene_cut is None and "scene_cut" in read else scene_cut,
        floor=1 if floor is None and "floor" in read else floor,
        seed=0 if seed is None and "seed" in read else seed,
    )
