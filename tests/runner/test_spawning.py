"""The server starts wherever it is called: what lies in the working directory stands in for no module."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.spawning import spawn


@pytest.mark.parametrize("name", ["runner.py", "queue.py", "vision/__init__.py"])
def test_files_beside_are_not_imported(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's process, awaiting its settings, ends quietly when there are none."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("import pathlib\npathlib.Path('imported').touch()\nraise SystemExit(9)\n")
    monkeypatch.chdir(tmp_path)
    spawned = spawn()
    _, _ = spawned.process.communicate(timeout=120), spawned.ours.close()
    assert not (tmp_path / "imported").exists()
    assert spawned.process.returncode != 9
