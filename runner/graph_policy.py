"""Whether steps are captured at all, settled at start. Owns what the flag means on each device; captures nothing."""

from __future__ import annotations

from dataclasses import dataclass

from attention.protocol import Capabilities
from runner.errors import EngineStartError
from runner.route import GraphPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphChoice:
    """refusal: why no step is captured, counted and said; None where steps are."""

    refusal: str | None
    note: str


def choose_graphs(policy: GraphPolicy, device_type: str, backend: Capabilities) -> GraphChoice:
    """`auto` captures on CUDA. On a CPU there is no compiler behind it, and steps of fixed shape read whole page tables
    where others read contexts in place: it goes eager there. Raises EngineStartError where `always` cannot be."""
    if policy == "never":
        return GraphChoice(refusal="policy_never", note="graphs: none (--graphs never)")
    if not backend.graphs:
        if policy == "always":
            raise EngineStartError(f"--graphs always: the {backend.name} attention backend has no graphs")
        return GraphChoice(refusal="backend_has_no_graphs", note=f"graphs: none ({backend.name} has none)")
    if device_type == "cpu" and policy == "auto":
        return GraphChoice(refusal="eager_is_faster_on_cpu", note="graphs: none (on a CPU eager steps are faster)")
    kind = "CUDA graphs" if device_type == "cuda" else "steps of fixed shape, as asked for"
    return GraphChoice(refusal=None, note=f"graphs: {kind}")
