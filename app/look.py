"""Owns how a command looks at a clip: its rate, its frames, its pruning.

Knows nothing of what is asked about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from runner.errors import RequestError
from runner.requests import EvsMethod, EvsOptions, VideoOptions


@dataclass(frozen=True, kw_only=True)
class Look:
    """Values of flags; None leaves them to the model and to the settings."""

    fps: float | None = None
    max_frames: int | None = None
    method: str | None = None
    rate: float | None = None

    @property
    def video(self) -> VideoOptions:
        return VideoOptions(fps=self.fps, max_frames=self.max_frames)

    @property
    def evs(self) -> EvsOptions:
        """Raises RequestError for a method that does not exist."""
        known = get_args(EvsMethod)
        if self.method is not None and self.method not in known:
            raise RequestError("invalid", f"--evs {self.method}: choose one of {', '.join(known)}", param="evs")
        return EvsOptions(method=self.method, rate=self.rate)  # type: ignore[arg-type]
