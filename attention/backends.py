"""Which backend serves a device, and why. Owns the choice; knows no models."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Literal

from attention import flashinfer, sdpa
from attention.protocol import AttentionBackend, Capabilities, KVLayout

BackendName = Literal["auto", "sdpa", "flashinfer"]
BACKENDS: tuple[Capabilities, ...] = (sdpa.CAPABILITIES, flashinfer.CAPABILITIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendChoice:
    """name, and the reason, said at start."""

    name: Literal["sdpa", "flashinfer"]
    reason: str


def choose_backend(wanted: BackendName, layout: KVLayout) -> BackendChoice:
    """`auto` takes flashinfer where it can serve the layout. Raises ValueError, with what is missing, for a backend
    that was named and cannot."""
    if wanted == "sdpa":
        return BackendChoice(name="sdpa", reason="as asked for")
    missing = missing_for_flashinfer(layout)
    if missing is None:
        return BackendChoice(name="flashinfer", reason="as asked for" if wanted == "flashinfer" else "CUDA")
    if wanted == "flashinfer":
        raise ValueError(f"the flashinfer backend cannot be used: {missing}")
    return BackendChoice(name="sdpa", reason=missing)


def missing_for_flashinfer(layout: KVLayout) -> str | None:
    """The first thing that stands in the way."""
    served = flashinfer.CAPABILITIES
    if layout.device.type not in served.devices:
        return f"it runs on CUDA, and the device is {layout.device.type}"
    if importlib.util.find_spec("flashinfer") is None:
        return 'the package is not installed (pip install "evserve[cuda]")'
    if layout.dtype not in served.kv_dtypes:
        return f"it keeps no keys in {layout.dtype}"
    if layout.head_dim not in flashinfer.HEAD_DIMS:
        return f"it has no kernels for {layout.head_dim} numbers a head"
    return None


def make_backend(choice: BackendChoice, layout: KVLayout) -> AttentionBackend:
    return flashinfer.FlashInferBackend(layout) if choice.name == "flashinfer" else sdpa.SdpaBackend(layout)
