"""transformers at its start, without what no server needs. Owns what is changed in it before it looks round; knows no
models.

It reads all of its 1,700 files to learn which names they have, twice, for what it keeps of the first time is too little
to find again. And it imports what it has for distributed tensors and for attention that is compiled.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any

QUESTIONS = "transformers.utils.import_utils"
# What it asks about torch, and is told that this one was built without: importing what it has for them takes a second,
# and nothing here spreads a model over processes or compiles its attention.
UNUSED = ("is_torch_distributed_available", "is_torch_flex_attn_available")
READER, LISTER, LIST = "create_import_structure_from_path", "fetch__all__", "__all__"


def shorten_start() -> None:
    """To be called before transformers is imported; later it does nothing."""
    if QUESTIONS not in sys.modules:
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module, once, as it would be found without us."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != QUESTIONS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        _shorten(module)


def _shorten(module: Any) -> None:
    for question in UNUSED:
        if hasattr(module, question):
            setattr(module, question, lambda: False)
    remembers_some = getattr(getattr(module, READER, None), "__wrapped__", None)
    if remembers_some is not None:
        setattr(module, READER, cache(remembers_some))
    names_of = getattr(module, LISTER, None)
    if callable(names_of):
        setattr(module, LISTER, lambda text: names_of(from_list(text)))


def from_list(text: str) -> str:
    """A file from the last line that begins its list of names; nothing where none does. Lines before that cost most of
    the time that is spent on a file.

    Worked example: "import os\\n__all__ = ['A']\\n" gives "__all__ = ['A']\\n".
    """
    start = text.rfind("\n" + LIST) + 1
    return text[start:] if text.startswith(LIST, start) else ""
