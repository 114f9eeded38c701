"""Owns the meaning of the model name `demo`: the tiny model that ships with the project.

Knows nothing of models. Works from a checkout and from an installed package.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

from rich.console import Console

DEMO = "demo"
DEMO_NOTE = "demo is a tiny model that only knows coloured shapes; give a model folder or a hub id for real videos"


def note_demo(name: str, console: Console) -> None:
    """Say what the demo model is not, where it is the one."""
    if name == DEMO:
        console.print(DEMO_NOTE, style="yellow", highlight=False, soft_wrap=True)


def resolve_model(name: str) -> str:
    """The folder of the demo model for `demo`, any other name unchanged."""
    if name != DEMO:
        return name
    checkout = Path(__file__).resolve().parent.parent / "demo" / "model"
    installed = Path(sysconfig.get_path("data")) / "share" / "evserve" / "demo" / "model"
    for folder in (checkout, installed):
        if (folder / "config.json").is_file():
            return str(folder)
    raise FileNotFoundError("the demo model is not part of this installation; give a model folder or a hub id")
