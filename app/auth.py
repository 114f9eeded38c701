"""Owns the check of API keys, before any route sees a request; WebSockets are covered too.

Knows nothing of what routes do. Only what is listed here is open; every other path, known or not, needs a key.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import ApiError, error_response

OPEN_PATHS = frozenset({"/", "/health"})  # exact: the playground is one self-contained page
POLICY_VIOLATION = 1008


EVERYBODY = ""  # the owner of all stored files where no keys are asked for


class KeyCheck:
    """Compares digests in constant time, all keys each time, so that neither key nor place can be timed.

    `scope["state"]["owner"]` tells routes whose request it is, by a digest: keys themselves go no further.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = tuple(_digest(key) for key in keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or _is_open(scope) or self._allows(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": "invalid API key"})
        else:
            await error_response(_refusal())(scope, receive, send)

    def _allows(self, scope: Scope) -> bool:
        state = scope.setdefault("state", {})
        state["owner"] = EVERYBODY
        if not self._digests:
            return True
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        offered = _digest(key.strip())
        state["owner"] = offered.hex()
        matches = [hmac.compare_digest(offered, digest) for digest in self._digests]
        return scheme.lower() == "bearer" and any(matches)


def _is_open(scope: Scope) -> bool:
    """By the raw path, not by a URL put together from headers that the client chose."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")) in OPEN_PATHS


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _refusal() -> ApiError:
    return ApiError(
        401,
        "missing or wrong API key; send it as Authorization: Bearer KEY",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )
