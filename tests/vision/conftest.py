"""One decode pool for all tests of this folder that need children: its start takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from vision.cage import DecodePool


@pytest.fixture(scope="session")
def pool() -> Iterator[DecodePool]:
    with DecodePool(workers=2) as started:
        yield started
