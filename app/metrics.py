"""Owns the metrics of the HTTP side and the text of /metrics, in which the engine's own stand beside them.

Knows nothing of what the engine counts: its counters and gauges are passed on under the names it gave them. Where a
metric means the same as one of vLLM's it has vLLM's name, `vllm:` included; all others begin with `evs:`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each, which nobody asks for

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LATENCY_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_NAME = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


class Metrics:
    """One registry a server: two servers in one process do not share numbers."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.http_requests = Counter(
            "evs:http_requests", "Requests answered", ["method", "route", "status"], registry=self.registry
        )
        self.http_duration_s = Histogram(
            "evs:http_request_duration_seconds",
            "From the request's head to the last byte of its answer",
            ["method", "route"],
            buckets=LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        self.http_in_flight = Gauge("evs:http_requests_in_flight", "Requests being answered", registry=self.registry)
        self.uploads = Gauge("evs:uploads_on_disk", "Uploaded files that live requests hold", registry=self.registry)
        self.answers = Counter(
            "evs:answers", "Answers that ended, by how their client saw it", ["finished_reason"], registry=self.registry
        )
        self.first_token_s = Histogram(
            "vllm:time_to_first_token_seconds",
            "From the request's last byte to its first token",
            buckets=LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        self.token_s = Histogram(
            "vllm:request_time_per_output_token_seconds",
            "Mean time between tokens of an answer",
            buckets=TOKEN_BUCKETS_S,
            registry=self.registry,
        )
        self.latency_s = Histogram(
            "vllm:e2e_request_latency_seconds",
            "From the request's last byte to its last token",
            buckets=LATENCY_BUCKETS_S,
            registry=self.registry,
        )

    def render(self, counters: Mapping[str, float], gauges: Mapping[str, float]) -> bytes:
        engine = CollectorRegistry()
        engine.register(_EngineNumbers(counters, gauges))
        return generate_latest(self.registry) + generate_latest(engine)


class _EngineNumbers:
    """The engine's numbers as families: keys that differ only in their labels belong together."""

    def __init__(self, counters: Mapping[str, float], gauges: Mapping[str, float]) -> None:
        self._counters = counters
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for key, value in self._counters.items():
            name, labels = parse_key(key)
            name = name.removesuffix("_total")
            family = families.setdefault(name, CounterMetricFamily(name, f"The engine's {name}"))
            family.add_sample(name + "_total", labels, value)
        for key, value in self._gauges.items():
            name, labels = parse_key(key)
            families.setdefault(name, GaugeMetricFamily(name, f"The engine's {name}")).add_sample(name, labels, value)
        return families.values()


def parse_key(key: str) -> tuple[str, dict[str, str]]:
    """'evs:graph_misses{reason="shape"}' -> ('evs:graph_misses', {'reason': 'shape'})"""
    match = _NAME.fullmatch(key)
    if match is None:
        raise ValueError(f"not a metric's name: {key!r}")
    labels = {name: re.sub(r"\\(.)", _unescape, value) for name, value in _LABEL.findall(match[2] or "")}
    return match[1], labels


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
