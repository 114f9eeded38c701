"""Owns the ways of looking at a clip that an evaluation compares, and which of them follow another's kept count. Knows
nothing of answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.messages import EvsUsage
from runner.requests import EvsMethod, EvsOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """like_gate: of each clip as many cells are kept as `gate` keeps of it; evs.rate is then of no meaning."""

    name: str
    evs: EvsOptions
    like_gate: bool = False


OFF = Way(name="none", evs=EvsOptions(method="none"))
DEFAULT = Way(name="gate / reuse", evs=EvsOptions(method="gate", encoder="reuse"))


def _like_gate(method: EvsMethod) -> Way:
    return Way(name=f"{method} / full, as many", evs=EvsOptions(method=method, encoder="full"), like_gate=True)


WAYS: tuple[Way, ...] = (
    OFF,
    DEFAULT,
    Way(name="gate / full", evs=EvsOptions(method="gate", encoder="full")),
    Way(name="gate / skip", evs=EvsOptions(method="gate", encoder="skip")),
    _like_gate("evs"),
    _like_gate("uniform"),
    _like_gate("random"),
    Way(name="gate / reuse, threshold 6/255", evs=EvsOptions(method="gate", encoder="reuse", threshold=6 / 255)),
    *(Way(name=f"evs / full, rate {rate}", evs=EvsOptions(method="evs", rate=rate)) for rate in (0.5, 0.75, 0.85)),
)


def choose_ways(names: Sequence[str]) -> tuple[Way, ...]:
    """The ways of these names, EVS off and the default first, on which the others are measured; all for no names."""
    known = {way.name: way for way in WAYS}
    wrong = [name for name in names if name not in known]
    if wrong:
        raise ValueError(f"no such ways: {wrong}; there are {list(known)}")
    return tuple(way for way in WAYS if not names or way.name in names or way in (OFF, DEFAULT))


def options_for(way: Way, gated: EvsUsage | None) -> EvsOptions:
    """What to ask for one clip; gated: what `gate` did to it, read only by ways that follow it.

    Worked example: gate kept 56 of 160 cells, so the rate is 1 - 56.5 / 160 = 0.646875, of which 160 cells keep
    floor(56.5) = 56: half a cell keeps the rounding of the rate from costing one.
    """
    if not way.like_gate:
        return way.evs
    assert gated is not None
    rate = max(0.0, 1 - (gated.kept + 0.5) / gated.cells)
    return EvsOptions(method=way.evs.method, rate=rate, encoder=way.evs.encoder)
