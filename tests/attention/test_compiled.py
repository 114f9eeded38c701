"""Where a compiler is promised, something is compiled."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

from attention.compiled import COMPILED, load_library


@pytest.mark.skipif(not os.environ.get("EVS_NEEDS_PRODUCTS"), reason="EVS_NEEDS_PRODUCTS=1 asks for a C compiler")
def test_it_is_compiled_where_there_is_a_compiler() -> None:
    assert find_spec(COMPILED) is not None and load_library() is not None
