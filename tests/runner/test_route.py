"""The route is a pure function with a reason."""

from __future__ import annotations

import pytest

from runner.route import Route, StepShape, route

DECODE_3 = StepShape(num_rows=3, num_seqs=3, num_visual=0, rows_per_seq=1)
DECODE_5 = StepShape(num_rows=5, num_seqs=5, num_visual=0, rows_per_seq=1)
DRAFTS_2 = StepShape(num_rows=6, num_seqs=3, num_visual=0, rows_per_seq=2)
PREFILL = StepShape(num_rows=9, num_seqs=3, num_visual=0, rows_per_seq=None)
CELL = StepShape(num_rows=1, num_seqs=1, num_visual=1, rows_per_seq=1)


@pytest.mark.parametrize(
    ("shape", "policy", "graphs", "captured", "expected"),
    [
        (DECODE_3, "auto", True, (1, 2, 4), ("graph", 4, "decode")),
        (DECODE_5, "auto", True, (1, 2, 4), ("eager", None, "larger_than_captured")),
        (PREFILL, "always", True, (4,), ("eager", None, "prefill")),
        (CELL, "always", True, (4,), ("eager", None, "prefill")),
        (DRAFTS_2, "auto", True, (1, 2, 4), ("eager", None, "drafts")),
        (DECODE_3, "never", True, (4,), ("eager", None, "policy_never")),
        (DECODE_3, "auto", False, (), ("eager", None, "backend_has_no_graphs")),
        (DECODE_3, "auto", True, (), ("eager", None, "nothing_captured")),
    ],
)  # fmt: skip
def test_routes(shape, policy, graphs, captured, expected) -> None:
    mode, bucket, reason = expected
    chosen = route(shape, policy=policy, backend_graphs=graphs, captured=captured)
    assert chosen == Route(mode=mode, bucket=bucket, reason=reason)
