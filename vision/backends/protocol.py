"""What a decoder must do for a clip, and which ones there are.

Knows nothing of any decoder: each is imported only when it is used. Which pictures are wanted, and at which times, is
settled before from the packets' own times, so every decoder is asked for the same pictures.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from vision.color import Pixels
from vision.frames import BackendName
from vision.probe import Clip
from vision.rotation import Orientation

# name -> (module that must be importable, what to install)
_NEEDS: dict[BackendName, tuple[str, str]] = {
    "pyav": ("av", "av"),
    "decord": ("decord", "evserve[decord]"),
    "torchcodec": ("torchcodec", "torchcodec, with FFmpeg's shared libraries"),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Picture:
    """One decoded picture: (h, w, 3) uint8 RGB, upright; `orientation` is how it was stored.

    transfer: FFmpeg's number of the curve its values follow; matters where it is one of high dynamic range.
    """

    pixels: Pixels
    orientation: Orientation
    transfer: int = 0


class Backend(Protocol):
    """A decoder of whole pictures."""

    def find_pictures(self, clip: Clip, wanted: Sequence[int]) -> Iterator[tuple[int, Picture]]:
        """The pictures shown at the wanted ticks, in any order and each once; damaged ones are left out.

        Raises BackendRefusalError, before or between pictures, where it cannot give the same ones as PyAV.
        """
        ...


class BackendRefusalError(Exception):
    """This clip is not for this decoder; `reason` is a few fixed words, fit to count by."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def available_backends() -> tuple[BackendName, ...]:
    return tuple(name for name, (module, _) in _NEEDS.items() if importlib.util.find_spec(module) is not None)


def check_backend(name: str) -> BackendName:
    """The name, if it can be used here. Raises ValueError that says what to install or which names there are."""
    found = next((known for known in _NEEDS if known == name), None)
    if found is None:
        raise ValueError(f"there is no decode backend {name!r}; known: {', '.join(_NEEDS)}")
    if found not in available_backends():
        raise ValueError(
            f"the decode backend {name!r} is not installed (install {_NEEDS[found][1]}); "
            f"here are: {', '.join(available_backends())}"
        )
    return found


def load_backend(name: BackendName) -> Backend:
    """Import the decoder's own module and nothing of the others'. Raises BackendRefusalError when that fails."""
    try:
        module = importlib.import_module(f"vision.backends.{name}")
    except (ImportError, OSError, RuntimeError) as error:
        raise BackendRefusalError("it cannot be loaded") from error
    backend: Backend = module.make_backend()
    return backend
