"""Owns the entry point `evs`. What the commands are is for app/commands.py.

For `evs serve` the engine's process begins before anything else: its imports take seconds, and ours half a one.
"""

from __future__ import annotations

import importlib
import sys

from runner.spawning import spawn_early


def main() -> None:
    if sys.argv[1:2] == ["serve"] and "--help" not in sys.argv:
        spawn_early()
    importlib.import_module("app.commands").main()
