"""The example client against a server: a folder of pictures goes out with times, windows are printed as they come."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.conftest import StartServer
from tests.app.fake_stream import StreamingEngine

EXAMPLE = Path(__file__).parents[3] / "examples" / "realtime.py"


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_the_example_prints_windows(start_server: StartServer, tmp_path: Path, kind: str) -> None:
    clip = tmp_path / "clip"
    if kind == "folder":
        clip.mkdir()
        for number in range(3):
            (clip / f"{number}.jpg").write_bytes(b"\xff\xd8\xff" + bytes([number]))
    else:
        clip.write_bytes(b"\x1aE\xdf\xa3")
    server = start_server(StreamingEngine())
    url = server.url.replace("http", "ws") + "/v1/realtime"
    command = [sys.executable, str(EXAMPLE), str(clip), "--url", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    spans = [line.split(" s ")[0].split() for line in done.stdout.splitlines()]
    assert spans == ([["0.00", "-", "2.00"], ["0.50", "-", "2.50"], ["1.00", "-", "3.00"]] if kind == "folder"
                     else [["0.00", "-", "2.00"]])  # fmt: skip
