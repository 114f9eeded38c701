"""The shape of the repository: five rooms of short files, tests that mirror them, no text tied to one machine."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("app", "runner", "vision", "evs", "attention")
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 50
# Folders of tests that belong to no room: "repo" holds the checks of everything round the rooms, "demo" those of how
# the built-in model is made, "field" what happens to servers in the field, tried through all of them at once.
ROOMLESS_TESTS = {"repo", "field", "demo"}
MACHINE_PATHS = re.compile(r"(?<![\w.:/-])/(?:work|root|opt/(?:wheels|pypi)|home/\w+)/|\.\./shared/")


def room_files() -> Iterator[Path]:
    for room in ROOMS:
        yield from sorted((ROOT / room).rglob("*.py"))


@cache
def tracked_files() -> tuple[Path, ...]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, so there is no list of committed files")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file())


def long_functions(source: str, *, limit: int) -> list[str]:
    """Names and lengths of the functions in `source` that pass `limit` lines, signature and docstring included."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            if lines > limit:
                found.append(f"{node.name} ({lines} lines)")
    return found


def test_rooms_are_the_only_packages() -> None:
    """The five rooms, and nothing else but their tests, are importable from the root."""
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py") if not path.parent.name.startswith(".")}
    assert packages - {"tests"} == set(ROOMS)


def test_files_in_rooms_are_short() -> None:
    """A file that needs a map is two files."""
    lengths = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in room_files()}
    assert {str(path): n for path, n in lengths.items() if n > MAX_FILE_LINES} == {}


def test_functions_in_rooms_are_short() -> None:
    """A function fits on a screen."""
    found = {
        str(path.relative_to(ROOT)): long
        for path in room_files()
        if (long := long_functions(path.read_text(), limit=MAX_FUNCTION_LINES))
    }
    assert found == {}


def test_files_in_rooms_open_with_a_sentence() -> None:
    """Each file with code in it says first what it owns."""
    sources = {path: path.read_text() for path in room_files()}
    silent = [path for path, text in sources.items() if text.strip() and not ast.get_docstring(ast.parse(text))]
    assert [str(path.relative_to(ROOT)) for path in silent] == []


def test_test_folders_mirror_rooms() -> None:
    """tests/<room>/<folder> exists only where <room>/<folder> does."""
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    unknown = [
        str(folder)
        for folder in folders
        if folder.parts and folder.parts[0] not in ROOMLESS_TESTS and not (ROOT / folder).is_dir()
    ]
    assert unknown == []
    assert {folder.parts[0] for folder in folders if folder.parts} <= {*ROOMS, *ROOMLESS_TESTS}


def test_committed_text_names_no_machine() -> None:
    """What is committed works anywhere, so it names no folder of the machine it was written on."""
    named = []
    for path in tracked_files():
        data = path.read_bytes()
        if b"\0" in data[:4096]:
            continue
        for number, line in enumerate(data.decode().splitlines(), start=1):
            if MACHINE_PATHS.search(line):
                named.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert named == []


def test_long_functions_are_found() -> None:
    """The check above sees what it should: a method of three lines passes a limit of two, one of two does not."""
    source = "class A:\n    async def f(self):\n        a = 1\n        return a\n    def g(self):\n        return 1\n"
    assert long_functions(source, limit=2) == ["f (3 lines)"]


@pytest.mark.parametrize(
    ("text", "is_machine_path"),
    [
        ("see /" + "work/main/app", True),
        ('open("/' + 'root/.cache")', True),
        ("../" + "shared/design.md", True),
        ("https://example.com/work/x", False),
        ("the network/work/load", False),
    ],
)
def test_machine_paths_are_found(text: str, is_machine_path: bool) -> None:
    """The pattern catches absolute folders and lets addresses through."""
    assert bool(MACHINE_PATHS.search(text)) is is_machine_path
