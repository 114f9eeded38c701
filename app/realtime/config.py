"""Owns what a session has been told: the client's values over the defaults, and how they read when reported.

Knows nothing of sockets or of streams that run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.convert import convert_evs
from app.embeddings import convert_window
from app.realtime.events import SessionKnobs
from app.realtime.output import OutputOptions, settings_body
from runner.stream_messages import OpenStream, StreamOpened

DEFAULTS = SessionKnobs(type="embedding")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of one session, told at its start. expiring_s: so long before its end it is warned."""

    idle_s: float
    session_s: float
    max_message_bytes: int
    expiring_s: float = 30.0

    def body(self) -> dict[str, Any]:
        return {"idle_s": self.idle_s, "session_s": self.session_s, "max_message_bytes": self.max_message_bytes}


def merge_knobs(old: SessionKnobs, new: SessionKnobs) -> SessionKnobs:
    """A group that is given replaces the whole group; what is not given stays."""
    return old.model_copy(update={name: value for name, value in new if value is not None})


def make_open(knobs: SessionKnobs, request_id: str) -> OpenStream:
    output, given = knobs.output, knobs.input
    return OpenStream(
        request_id=request_id,
        format=(given.format if given is not None else None) or "auto",
        window=convert_window(knobs.window),
        evs=convert_evs(knobs.evs),
        gate="changed" if knobs.gate_windows else "all",
        overload=knobs.overload or "wait",
        dimensions=output.dimensions if output is not None else None,
        normalize=output is None or output.normalize is not False,
        instruction=knobs.instruction,
    )


def output_options(knobs: SessionKnobs) -> OutputOptions:
    output = knobs.output
    if output is None:
        return OutputOptions()
    include = OutputOptions().include if output.include is None else frozenset(output.include)
    return OutputOptions(encoding=output.encoding_format or "float", include=include)


def session_body(
    session_id: str, model: str, knobs: SessionKnobs, limits: Limits, *, dim: int, opened: StreamOpened | None
) -> dict[str, Any]:
    """With `opened`, the values in force, which may differ from those asked for."""
    output = output_options(knobs)
    given = knobs.input
    body: dict[str, Any] = {
        "id": session_id,
        "object": "realtime.session",
        "type": "embedding",
        "model": model,
        "dim": dim,
        "limits": limits.body(),
        "input": {
            "format": (given.format if given else None) or "auto",
            "timestamps": given.timestamps if given else None,
        },
        "gate_windows": bool(knobs.gate_windows),
        "overload": knobs.overload or "wait",
        "output": {
            "encoding_format": output.encoding,
            "normalize": knobs.output is None or knobs.output.normalize is not False,
            "include": sorted(output.include),
        },
    }
    if opened is not None:
        body |= settings_body(opened)
    body["output"]["dimensions"] = body["dim"]
    return body
