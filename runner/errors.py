"""What can go wrong with one request, as seen from outside the engine.

    EngineError
    |- RequestError        this request was refused; its kind says how (see messages.ErrorKind)
    |- RequestCancelled    nobody waits for this request any more
    |- EngineDeadError     the engine's process is gone: nothing can be answered
    |  `- EngineSilentError  it is there and does not answer, which may pass
    `- EngineStartError    the engine could not start; the message says what to do

Knows nothing of HTTP: the one table that maps kinds to statuses is in app/errors.py.
"""

from __future__ import annotations

from runner.messages import ErrorKind


class EngineError(Exception):
    """Root of all errors that leave the engine."""


class RequestError(EngineError):
    """One request was refused. `message` tells its author what to do; it never holds a path, address or payload."""

    def __init__(self, kind: ErrorKind, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.kind: ErrorKind = kind
        self.message = message
        self.param = param
        self.code = code


class RequestCancelled(EngineError):  # noqa: N818 - its client's wish, not a fault
    """The client has gone, or asked to stop."""


class EngineDeadError(EngineError):
    """The engine's process has ended; requests in flight fail with this."""


class EngineSilentError(EngineDeadError):
    """The engine's process is there and does not answer; requests in flight fail with this. It may come back."""


class EngineStartError(EngineError):
    """The engine said why it cannot start."""
