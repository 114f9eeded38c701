"""What an installation compiled of attention/native, where it had a C compiler. Owns finding it; knows no arguments'
meaning."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.util import find_spec

COMPILED = "attention._attend"  # of pyproject.toml's ext-modules; not a module that could be imported

SYMBOLS = ("evs_attend", "evs_attend_many", "evs_can_attend")


@cache
def load_library() -> ctypes.CDLL | None:
    """None where nothing was compiled. Whether this CPU can run it `evs_can_attend` tells."""
    found = find_spec(COMPILED)
    if found is None or found.origin is None:
        return None
    try:
        library = ctypes.CDLL(found.origin)  # torch, whose OpenMP it uses, is there already
    except OSError:
        return None
    if not all(hasattr(library, name) for name in SYMBOLS):
        return None  # of an older installation
    library.evs_attend.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
    library.evs_attend_many.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.evs_attend.restype = library.evs_attend_many.restype = None
    library.evs_can_attend.argtypes = [ctypes.c_int64, ctypes.c_int64]
    return library
