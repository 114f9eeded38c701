"""Owns the count of what a session did: every frame in a window or dropped for one reason, and what it cost.

Knows nothing of sockets. What it remembers does not grow with the session.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from runner.stream_messages import FramesDropped, WindowLaid


class SessionCount:
    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()
        self.windows = self.used = 0
        self.cells = self.kept = self.encoder_cells = self.prompt_tokens = 0
        self._began = time.monotonic()
        self._last: frozenset[int] = frozenset()  # frames of the last window, with which the next may overlap

    def add_window(self, window: WindowLaid) -> None:
        seqs = frozenset(window.frame_seqs)
        self.used += len(seqs - self._last)
        self._last = seqs
        self.windows += 1
        self.cells += window.cells
        self.kept += window.kept
        self.encoder_cells += window.encoder_cells
        self.prompt_tokens += window.prompt_tokens

    def add_dropped(self, event: FramesDropped) -> None:
        self.dropped[event.reason] += len(event.seqs)

    def begin_part(self) -> None:
        """Numbers may begin again."""
        self._last = frozenset()

    def body(self) -> dict[str, Any]:
        return {
            "frames": {
                "used": self.used,
                "dropped": dict(self.dropped),
                "total": self.used + sum(self.dropped.values()),
            },
            "windows": self.windows,
            "evs": {"cells": self.cells, "kept": self.kept, "encoder_cells": self.encoder_cells},
            "usage": {"prompt_tokens": self.prompt_tokens, "total_tokens": self.prompt_tokens},
            "duration_s": round(time.monotonic() - self._began, 3),
        }
