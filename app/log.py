"""Owns the form of log lines: one line an event, `key=value`, made for people and for grep.

Knows nothing of what is logged, and offers no way to log a body: prompts, payloads and keys never reach a log.
"""

from __future__ import annotations

import logging
import sys

LOGGER = logging.getLogger("evserve")
MAX_VALUE_CHARS = 200


def configure_logging(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    LOGGER.handlers[:] = [handler]
    LOGGER.setLevel(level.upper())
    LOGGER.propagate = False


def log_event(event: str, *, level: int = logging.INFO, **fields: object) -> None:
    LOGGER.log(level, "%s", _format(event, fields))


def log_failure(event: str, error: BaseException, **fields: object) -> None:
    """Our own fault: with its traceback, which holds our lines of code and not the client's data."""
    LOGGER.error("%s", _format(event, {**fields, "error": type(error).__name__}), exc_info=error)


def _format(event: str, fields: dict[str, object]) -> str:
    return " ".join([event, *(f"{key}={_quote(value)}" for key, value in fields.items() if value is not None)])


def _quote(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    text = text if len(text) <= MAX_VALUE_CHARS else text[:MAX_VALUE_CHARS] + "..."
    return text if text.isprintable() and " " not in text and text else ascii(text)
