"""What was mapped of a checkpoint and is held elsewhere takes no memory, and nothing else is let go of."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from runner.mapped_weights import MappedFiles, find_stretches

SIDE = 1024


def resident_kib(file: Path) -> int:
    """Of all mappings of a file."""
    found = re.findall(
        rf"{re.escape(str(file))}\n.*?\nRss: +(\d+) kB",
        Path("/proc/self/smaps").read_text(errors="surrogateescape"),
        re.DOTALL,
    )
    return sum(map(int, found))


def test_pages_of_a_tensor_are_given_back(tmp_path: Path) -> None:
    """The others' stay, and what was given back reads as before."""
    file = tmp_path / "3f2a"  # a name that says nothing of its kind, as in a hub's cache
    save_file({name: torch.full((SIDE, SIDE), value) for name, value in (("a", 1.0), ("b", 2.0))}, file)
    tensors = load_file(file)
    whole = sum(float(tensor.sum()) for tensor in tensors.values())
    size = SIDE * SIDE * 4 // 1024
    assert resident_kib(file) >= 2 * size - 8, "safetensors maps files"
    files = MappedFiles()
    files.let_go(tensors["a"])
    assert size - 8 <= resident_kib(file) <= size + 256  # the kernel may bring some neighbours
    assert sum(float(tensor.sum()) for tensor in tensors.values()) == whole


def test_memory_of_ones_own_is_kept(tmp_path: Path) -> None:
    """And a mapped file whose name is no UTF-8 is no error."""
    strange = tmp_path / "m\udce9l"
    strange.write_bytes(bytes(4096))
    with strange.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        files, own = MappedFiles(), torch.ones(SIDE, SIDE)
    files.stretches.append((0, 4096))
    files.let_go(own)
    assert bool((own == 1).all())


def test_where_checkpoints_are_mapped() -> None:
    lines = (
        "7f00-7f80 rw-p 00000000 08:01 5 /models/a.safetensors",
        "7f80-8000 r--p 00000000 08:01 5 /models/blobs/a name without an end",
        "8100-8200 rw-p 00000000 08:01 5 /models/gone.safetensors (deleted)",
        "8300-8400 rw-p 00000000 00:00 0 [heap]",
        "8000-8010 rw-p 00000000 00:00 0",
    )
    assert find_stretches("\n".join(lines)) == [(0x7F00, 0x7F80), (0x7F80, 0x8000)]
