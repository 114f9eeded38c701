"""Owns `evs doctor`: what this machine has, and which adapter a model would get, as a table.

Knows nothing of torch or codecs: the engine's room describes those in a process of its own, so that a broken
installation is a line in the table and not a crash.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from app.model_path import resolve_model
from app.version import VERSION

TIMEOUT_S = 120.0
_DESCRIBE = "import json, runner.doctor; print(json.dumps(runner.doctor.describe(), default=str))"
_DESCRIBE_MODEL = (
    "import json, sys, runner.doctor_model; print(json.dumps(runner.doctor_model.describe_model(sys.argv[1])))"
)


def show_doctor(model: str | None) -> None:
    """The machine, or of a model (a folder, a hub id or demo) what it is and how it would be served."""
    facts = describe_host() | describe_engine() if model is None else describe_model(model)
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, spell(value))
    Console().print(table)


def describe_host() -> dict[str, object]:
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "evs": VERSION,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": cores,
        "memory": f"{memory_bytes / (1 << 30):.1f} GiB",
    }


def describe_engine() -> dict[str, object]:
    """What the engine's room finds, or why it cannot look."""
    return _ask_engine([sys.executable, "-c", _DESCRIBE])


def describe_model(model: str) -> dict[str, object]:
    """As the engine's room finds it."""
    return _ask_engine([sys.executable, "-c", _DESCRIBE_MODEL, resolve_model(model)])


def _ask_engine(command: list[str]) -> dict[str, object]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"engine": f"no answer within {TIMEOUT_S:g} s"}
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return {"engine": f"cannot be loaded: {lines[-1] if lines else 'it died without a word'}"}
    facts = json.loads(done.stdout.strip().splitlines()[-1])
    assert isinstance(facts, dict)
    return facts


def spell(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {spell(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(spell(inner) for inner in value)
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
