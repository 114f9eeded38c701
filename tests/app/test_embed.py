"""`evs embed`: a table for people, whole vectors for programs; both from a clip on disk, the engine in this process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "import app.cli; app.cli.main()", "embed", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("form", ["table", "jsonl"])
def test_windows_of_a_clip(form: str) -> None:
    done = run("sample_videos/mover.mp4", "--window", "4", "--stride", "2", "--find", "a circle appears",
               "--dimensions", "8", *(["--jsonl"] if form == "jsonl" else []))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "3 windows" in done.stderr and "cells encoded" in done.stderr
    lines = done.stdout.splitlines()
    if form == "table":
        assert "score" in lines[0] and len(lines) == 4 and "of 8" in lines[1]
        return
    windows = [json.loads(line) for line in lines]
    assert [(window["start_sec"], window["end_sec"]) for window in windows] == [(0, 4), (2, 6), (4, 8)]
    assert all(len(window["embedding"]) == 8 and -1 <= window["score"] <= 1 for window in windows)


def test_what_is_wrong_is_one_line() -> None:
    done = run("README.md")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("evs: this is ")
