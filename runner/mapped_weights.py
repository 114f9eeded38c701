"""Weights that still lie in a checkpoint's mapped file, once they are held elsewhere. Owns giving back their pages,
so that a start holds a model once and not twice; knows no layers.
"""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import torch

MAPS = Path("/proc/self/maps")


class MappedFiles:
    """The stretches of memory, [start, stop), at which files were mapped when this was made."""

    def __init__(self) -> None:
        try:
            self.stretches = find_stretches(MAPS.read_text(errors="surrogateescape"))
        except OSError:  # another system
            self.stretches = []
        self._library = ctypes.CDLL(None, use_errno=True) if self.stretches else None

    def let_go(self, tensor: torch.Tensor) -> None:
        """Give the pages that only hold this tensor back, where it lies in such a file. Nothing is lost: who reads it
        again reads the file. For tensors as they were read, to which nothing was written."""
        first, last = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        start, stop = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE, last // mmap.PAGESIZE * mmap.PAGESIZE
        is_mapped = any(low <= first and last <= high for low, high in self.stretches)
        if self._library is not None and is_mapped and start < stop:
            self._library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), mmap.MADV_DONTNEED)


def find_stretches(maps: str) -> list[tuple[int, int]]:
    """Of the text of /proc/self/maps: "7f00-7f80 rw-p 0 08:01 5 /models/a.safetensors" is (0x7f00, 0x7f80). Any name
    will do: a hub's cache names files otherwise."""
    found = []
    for line in maps.splitlines():
        place, name = line.split(maxsplit=1)[0], line.split(maxsplit=5)[-1]
        if name.startswith("/") and not name.endswith(" (deleted)"):
            start, _, stop = place.partition("-")
            found.append((int(start, 16), int(stop, 16)))
    return found
