"""The engine's process: `python -m runner.engine_process FD`, settings as JSON on standard input. Owns being a process:
signals, logging, death with its parent; the work is service.serve's."""

from __future__ import annotations

import ctypes
import logging
import signal
import socket
import sys

import msgspec

from runner.config import EngineConfig
from runner.service import serve

PR_SET_PDEATHSIG = 1


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to handle: it tells us to stop
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    config = msgspec.json.decode(sys.stdin.buffer.read(), type=EngineConfig)
    serve(socket.socket(fileno=int(sys.argv[1])), config)


if __name__ == "__main__":
    main()
