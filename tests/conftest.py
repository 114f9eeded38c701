"""Checkpoints built once a run and shared by all tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.checkpoints import BUILDERS

torch.set_num_threads(1)
# Machines are shared: how long an example takes says nothing, and the same examples are tried everywhere.
settings.register_profile("shared", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A family's tiny checkpoint folder, by name."""
    made: dict[str, Path] = {}

    def get(family: str) -> Path:
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            BUILDERS[family](folder)
            made[family] = folder
        return made[family]

    return get
