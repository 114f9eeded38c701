"""What this machine has that an engine would use, and how fast it is. Owns the looking; changes nothing and loads no
model."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import av
import torch

from attention.backends import BACKENDS
from runner.capacity import free_memory_bytes
from runner.families.registry import ADAPTERS
from runner.speed import count_cores, measure_speed
from vision.seal import can_seal

PACKAGES = ("torch", "torchvision", "transformers", "av", "decord2", "torchcodec", "flashinfer-python")


def describe() -> dict[str, Any]:
    """Facts for people, in reading order: name -> value, plain types only."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return {
        "device": torch.cuda.get_device_name()
        if device == "cuda"
        else f"cpu ({torch.backends.cpu.get_cpu_capability()})",
        "free memory": f"{free_memory_bytes(torch.device(device)) / 2**30:.1f} GiB",
        "compute threads": count_cores(),
        **measure_speed(),
        **{name: _version(name) for name in PACKAGES},
        "FFmpeg": ", ".join(f"{name} {'.'.join(map(str, v))}" for name, v in av.library_versions.items()),
        "video decoders": ", ".join(name for name in _DECODERS if name in av.codecs_available),
        "decoding children": "no sockets, no programs (seccomp)"
        if can_seal()
        else "the kernel takes no seccomp filter",
        "attention backends": [f"{backend.name} ({' or '.join(backend.devices)})" for backend in BACKENDS],
        "model families": ", ".join(sorted(ADAPTERS)),
    }


_DECODERS = ("h264", "hevc", "vp8", "vp9", "av1", "libdav1d", "mpeg4", "mpeg2video", "mjpeg", "prores", "gif")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
