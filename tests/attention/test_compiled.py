"""Where a compiler is promised, something is compiled; what is missing or old is left alone."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

from attention.compiled import COMPILED, SYMBOLS, load_library, open_compiled


@pytest.mark.skipif(not os.environ.get("EVS_NEEDS_PRODUCTS"), reason="EVS_NEEDS_PRODUCTS=1 asks for a C compiler")
def test_it_is_compiled_where_there_is_a_compiler() -> None:
    assert find_spec(COMPILED) is not None and load_library() is not None


def test_what_is_missing_or_old_is_left_alone() -> None:
    """A library of an older installation lacks what was added since."""
    assert open_compiled("attention._nowhere", ()) is None
    assert open_compiled(COMPILED, (*SYMBOLS, "evs_added_since")) is None
    assert (open_compiled(COMPILED, SYMBOLS) is None) is (find_spec(COMPILED) is None)
