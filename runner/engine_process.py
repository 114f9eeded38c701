"""The engine's process: `python -m runner.engine_process FD`, settings as JSON on standard input, while it imports.
Owns being a process: signals, logging, death with its parent; the work is service.serve's."""

from __future__ import annotations

import ctypes
import logging
import signal
import socket
import sys

import msgspec

from runner.config import EngineConfig
from runner.quick_transformers import shorten_start
from vision import forkserver
from vision.early import start_early
from vision.quick_imports import import_quickly

PR_SET_PDEATHSIG = 1
# What every model's module imports when it is loaded, and which imports the compiler.
MODELLING = ("transformers.masking_utils", "transformers.generation.utils")
# glibc's mallopt: a step's buffers are taken from memory that the last step freed. By default the large ones go back to
# the system each time, and 40,000 pages are zeroed and mapped again in each prefill: a tenth of its time.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES, MAPPED_FROM_BYTES = 512 << 20, 256 << 20


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to handle: it tells us to stop
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        keep_freed_memory()
    import_quickly(*forkserver.PRELOAD)
    settings = sys.stdin.buffer.read()
    if not settings:  # whoever began us was told to do something else
        return
    config = msgspec.json.decode(settings, type=EngineConfig)
    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    start_early((f"vision.backends.{config.decode.backend}",))
    shorten_start()
    import_quickly("runner.early_forms")  # starts threads: only now
    sys.modules["runner.early_forms"].begin_forms(device=config.device, dtype=config.dtype)
    import_quickly("runner.service", *MODELLING)
    sys.modules["runner.service"].serve(socket.socket(fileno=int(sys.argv[1])), config)


def keep_freed_memory() -> None:
    """Where the C library can be told; elsewhere nothing happens."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)


if __name__ == "__main__":
    main()
