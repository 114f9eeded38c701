"""The import contracts of pyproject.toml: each fails when it is broken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINT_IMPORTS = Path(sys.executable).parent / "lint-imports"


@pytest.fixture
def rooms(tmp_path: Path) -> Path:
    """Five empty rooms under the contracts of this repository."""
    for room in ("app", "runner", "vision", "evs", "attention"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").touch()
    for module in ("client", "engine"):
        (tmp_path / "runner" / f"{module}.py").touch()
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    return tmp_path


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    # The rooms installed beside the tool must not hide those of `folder`.
    env = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [LINT_IMPORTS, "--no-cache"], cwd=folder, env=env, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("room", "line", "contract"),
    [
        ("runner", "import app", "rooms"),
        ("evs", "import vision", "rooms"),
        ("attention", "import runner.client", "rooms"),
        ("vision", "import fastapi", "the web stays in app"),
        ("app", "import torch", "tensors and codecs stay out of app"),
        ("app", "import runner.engine", "one door into the engine"),
    ],
)
def test_broken_contract_is_reported(rooms: Path, room: str, line: str, contract: str) -> None:
    """One import across a wall breaks the contract that names that wall."""
    (rooms / room / "trespass.py").write_text(line + "\n")
    result = lint_imports(rooms)
    assert result.returncode == 1, result.stdout + result.stderr
    assert any(row.startswith(contract) and row.endswith("BROKEN") for row in result.stdout.splitlines())


def test_allowed_imports_pass(rooms: Path) -> None:
    """Control: down the stairs and through the door is allowed."""
    (rooms / "app" / "guest.py").write_text("import fastapi\nimport runner.client\n")
    (rooms / "runner" / "guest.py").write_text("import torch\nimport vision\nimport evs\nimport attention\n")
    result = lint_imports(rooms)
    assert result.returncode == 0, result.stdout + result.stderr
