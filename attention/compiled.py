"""What an installation compiled, where it had a C compiler. Owns finding it, and the calls of attention/native; knows
no arguments' meaning."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec

COMPILED = "attention._attend"  # of pyproject.toml's ext-modules; not a module that could be imported
SYMBOLS = ("evs_attend", "evs_attend_many", "evs_can_attend")


def open_compiled(name: str, symbols: Sequence[str]) -> ctypes.CDLL | None:
    """The library that lies where a module of this name would; None where nothing was compiled, or by an older
    installation, which lacks some of the symbols."""
    found = find_spec(name)
    if found is None or found.origin is None:
        return None
    try:
        library = ctypes.CDLL(found.origin)  # torch, whose OpenMP it uses, is there already
    except OSError:
        return None
    return library if all(hasattr(library, symbol) for symbol in symbols) else None


@cache
def load_library() -> ctypes.CDLL | None:
    """None where nothing was compiled. Whether this CPU can run it `evs_can_attend` tells."""
    library = open_compiled(COMPILED, SYMBOLS)
    if library is None:
        return None
    library.evs_attend.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
    library.evs_attend_many.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.evs_attend.restype = library.evs_attend_many.restype = None
    library.evs_can_attend.argtypes = [ctypes.c_int64, ctypes.c_int64]
    return library
