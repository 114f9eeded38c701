"""Owns how a session ends: the codes its socket is closed with, and the exception that says so.

Knows nothing of why.
"""

from __future__ import annotations

from runner.errors import RequestError

NORMAL, GOING_AWAY, BAD_DATA, OWN_FAULT, TRY_LATER = 1000, 1001, 1008, 1011, 1013
_CODES = {"queue_full": TRY_LATER, "unavailable": GOING_AWAY, "internal": OWN_FAULT}


class SessionOver(Exception):  # noqa: N818 - most ends are no errors
    """The session ends with this code, after an error event where there is something to say."""

    def __init__(self, code: int, error: Exception | None = None) -> None:
        super().__init__(str(error))
        self.code, self.error = code, error


def code_of(error: Exception) -> int:
    """The close code after an error of the engine."""
    return _CODES.get(error.kind, BAD_DATA) if isinstance(error, RequestError) else OWN_FAULT
