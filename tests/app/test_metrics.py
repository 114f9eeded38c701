"""Names of the engine's numbers."""

from __future__ import annotations

import pytest

from app.metrics import Metrics, parse_key


@pytest.mark.parametrize(
    ("key", "parsed"),
    [
        ("vllm:num_requests_running", ("vllm:num_requests_running", {})),
        ('a_total{x="1"}', ("a_total", {"x": "1"})),
        ('a{x="1",y="b, \\"c\\" \\\\ \\n"}', ("a", {"x": "1", "y": 'b, "c" \\ \n'})),
    ],
)
def test_keys(key: str, parsed: tuple[str, dict[str, str]]) -> None:
    assert parse_key(key) == parsed


def test_bad_key_is_our_bug() -> None:
    with pytest.raises(ValueError, match="not a metric"):
        parse_key("no spaces allowed")


def test_labels_of_one_family_stand_together() -> None:
    counters = {'r_total{why="a"}': 1.0, "b_total": 2.0, 'r_total{why="b"}': 3.0, "plain": 4.0}
    lines = [line for line in Metrics().render(counters, {}).decode().splitlines() if not line.startswith("# HELP")]
    at = lines.index("# TYPE r_total counter")
    assert lines[at : at + 3] == ["# TYPE r_total counter", 'r_total{why="a"} 1.0', 'r_total{why="b"} 3.0']
    assert "plain_total 4.0" in lines


def test_two_servers_in_one_process_count_apart() -> None:
    first, second = Metrics(), Metrics()
    first.answers.labels("stop").inc()
    assert b'evs:answers_total{finished_reason="stop"}' not in second.render({}, {})
