"""Imports of what needs torch's compiler only to be compiled: torchvision, transformers. Owns what stands in for the
compiler meanwhile; knows nothing of what is imported.

Both import all of torch._dynamo, and with it a computer algebra system, for two names and some marks on functions: a
second and more of processor time at each start, and 100 MB. Here they get names that import the real thing when they
are called.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"
# Names that are taken from the compiler's modules at import.
NAMES = {
    COMPILER: (),
    f"{COMPILER}.utils": ("is_compile_supported",),
    f"{COMPILER}._trace_wrapped_higher_order_op": ("TransformGetItemToIndex",),
}
# Marks that only a compiler reads.
MARKS = ("allow_in_graph", "assume_constant_result", "disable")


def import_quickly(*names: str) -> None:
    """Import modules, without the compiler where that can be; it is imported when something asks for it later."""
    try:
        with _stand_ins():
            for name in names:
                importlib.import_module(name)
    except (ImportError, AttributeError, RuntimeError):  # another version, which wants more of it
        for name in names:
            importlib.import_module(name)


@contextmanager
def _stand_ins() -> Iterator[None]:
    importlib.import_module("torch")
    if COMPILER in sys.modules:
        yield
        return
    made = {module: _make_module(module, names) for module, names in NAMES.items()}
    for mark in MARKS:
        setattr(made[COMPILER], mark, _leave_unmarked)
    sys.modules.update(made)
    try:
        yield
    finally:
        for module, stand_in in made.items():
            if sys.modules.get(module) is stand_in:
                del sys.modules[module]
        vars(sys.modules["torch"]).pop(COMPILER.rpartition(".")[2], None)  # where an import may have put it


def _make_module(module: str, names: tuple[str, ...]) -> ModuleType:
    made = ModuleType(module)
    made.__path__ = []  # it has submodules, and no others than those that stand in
    for name in names:
        setattr(made, name, _deferred(module, name))
    return made


def _deferred(module: str, name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*args, **kwargs)

    return call


def _leave_unmarked(function: Any = None, *_: Any, **__: Any) -> Any:
    """As a decorator, with arguments or without."""
    return (lambda marked: marked) if function is None else function
