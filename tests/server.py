"""A real server for tests: `evs serve` as a process of its own, on a free port, with nothing replaced."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

START_S = 120.0


@dataclass(eq=False)
class Server:
    """url without a trailing slash; pid of the HTTP process; engine_pid of its child."""

    url: str
    pid: int
    log: list[str] = field(default_factory=list)

    @property
    def engine_pid(self) -> int:
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if b"runner.engine_process" in command and parent == self.pid:
                return int(entry.name)
        raise AssertionError("the server has no engine process")


def read_gauges(url: str) -> dict[str, float]:
    """All of /metrics, the engine's among them: where it is too busy to say, it is asked again."""
    found: dict[str, float] = {}
    while "vllm:num_requests_running" not in found:
        lines = httpx2.get(f"{url}/metrics", timeout=60).text.splitlines()
        found = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}
    return found


@contextmanager
def running_server(model: Path | str, *flags: str, media_dir: Path) -> Iterator[Server]:
    """Start, wait until it serves, and end it with SIGTERM; its log is shown when it fails to start."""
    command = [
        str(Path(sys.executable).with_name("evs")), "serve", str(model), "--port", "0", "--media-dir", str(media_dir),
        *flags,
    ]  # fmt: skip
    environment = {key: value for key, value in os.environ.items() if not key.startswith("EVS_")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    found = threading.Event()
    server = Server(url="", pid=process.pid)

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            server.log.append(line.rstrip())
            if match := re.search(r"serving .*url=(\S+)", line):
                server.url = match[1]
                found.set()
        found.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        assert found.wait(START_S), "the server did not start in time:\n" + "\n".join(server.log)
        assert server.url, "the server ended while starting:\n" + "\n".join(server.log)
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join(10)
        assert process.stdout is not None
        process.stdout.close()
