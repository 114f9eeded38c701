"""Graph or eager, and why. Owns one pure function; runs nothing and captures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

GraphPolicy = Literal["auto", "always", "never"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """num_rows packed rows of num_seqs sequences. rows_per_seq: of a step of decodes alone, all of which try drafts of
    the same length, one more than that; None of any other. A decode step has no cells."""

    num_rows: int
    num_seqs: int
    num_visual: int
    rows_per_seq: int | None

    @property
    def is_decode(self) -> bool:
        return self.rows_per_seq is not None and self.num_visual == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """mode, the captured batch size when it is a graph, and the reason, counted in metrics."""

    mode: Literal["graph", "eager"]
    bucket: int | None
    reason: str


def route(shape: StepShape, *, policy: GraphPolicy, backend_graphs: bool, captured: Sequence[int]) -> Route:
    """Choose how one step runs.

    captured: batch sizes a graph exists for, rising. Worked example: captured (1, 2, 4), 3 decoding sequences: a graph
    of bucket 4; 5 sequences: eager, "larger_than_captured"; a step with a prefill chunk: eager, "prefill"; one that
    tries drafts: eager, "drafts".
    """
    if policy == "never":
        return Route(mode="eager", bucket=None, reason="policy_never")
    if not shape.is_decode:
        return Route(mode="eager", bucket=None, reason="prefill")
    if not backend_graphs:
        return Route(mode="eager", bucket=None, reason="backend_has_no_graphs")
    if shape.rows_per_seq != 1:
        return Route(mode="eager", bucket=None, reason="drafts")
    bucket = next((size for size in captured if size >= shape.num_seqs), None)
    if bucket is None:
        return Route(mode="eager", bucket=None, reason="larger_than_captured" if captured else "nothing_captured")
    return Route(mode="graph", bucket=bucket, reason="decode")
