"""The engine's process: `python -m runner.engine_process FD`, settings as JSON on standard input. Owns being a process:
signals, logging, death with its parent; the work is service.serve's."""

from __future__ import annotations

import ctypes
import importlib
import logging
import signal
import socket
import sys

import msgspec

from runner.config import EngineConfig
from vision.early import start_early
from vision.quick_imports import import_quickly

PR_SET_PDEATHSIG = 1
UNUSED = ("is_torch_distributed_available", "is_torch_flex_attn_available")  # questions of transformers about torch
# glibc's mallopt: a step's buffers are taken from memory that the last step freed. By default the large ones go back to
# the system each time, and 40,000 pages are zeroed and mapped again in each prefill: a tenth of its time.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES, MAPPED_FROM_BYTES = 512 << 20, 256 << 20


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to handle: it tells us to stop
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        keep_freed_memory()
    config = msgspec.json.decode(sys.stdin.buffer.read(), type=EngineConfig)
    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    start_early((f"vision.backends.{config.decode.backend}",))
    forgo_what_is_unused()
    import_quickly("runner.service")  # starts threads: only now
    sys.modules["runner.service"].serve(socket.socket(fileno=int(sys.argv[1])), config)


def keep_freed_memory() -> None:
    """Where the C library can be told; elsewhere nothing happens."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)


def forgo_what_is_unused() -> None:
    """Have transformers take torch for one that was built without these: importing what it has for them takes a second,
    and nothing here spreads a model over processes or compiles its attention."""
    for module in map(importlib.import_module, ("transformers.utils.import_utils", "transformers.utils")):
        for question in UNUSED:
            if hasattr(module, question):
                setattr(module, question, lambda: False)


if __name__ == "__main__":
    main()
