"""Owns what happens round every HTTP request: its id, its log line, its metrics, and the catch for our own faults.

Knows nothing of routes or bodies. The route in metrics is the template, so that ids in paths make no new series.
"""

from __future__ import annotations

import time
import uuid

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import error_response
from app.log import log_event, log_failure
from app.metrics import Metrics

UNKNOWN_ROUTE = "unknown"


class Access:
    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        status = 0
        began = time.perf_counter()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        self._metrics.http_in_flight.inc()
        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            log_failure("request_failed", error, id=request_id)
            if status == 0:
                await error_response(error)(scope, receive, send_with_id)
        finally:
            self._metrics.http_in_flight.dec()
            self._count(scope, status, time.perf_counter() - began, request_id)

    def _count(self, scope: Scope, status: int, duration_s: float, request_id: str) -> None:
        route = getattr(scope.get("route"), "path", UNKNOWN_ROUTE)
        method = scope["method"] if scope.get("route") else "any"
        self._metrics.http_requests.labels(method, route, str(status)).inc()
        self._metrics.http_duration_s.labels(method, route).observe(duration_s)
        log_event("request", id=request_id, method=method, route=route, status=status, duration_s=duration_s)
