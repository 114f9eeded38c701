"""What the engine's process does before it knows its settings, and beside its imports."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch

from runner import early_forms, linear_forms, spawning
from runner.quick_transformers import from_list

NAMES = """
import sys
if sys.argv[1] == "quickly":
    from runner.quick_transformers import shorten_start
    shorten_start()
import transformers.models
from transformers.utils import import_utils
assert import_utils.is_torch_flex_attn_available() == (sys.argv[1] != "quickly")
for module in (transformers, transformers.models):
    missing = module._object_missing_backend
    print(sorted(module._class_to_module.items()), sorted((name, sorted(missing[name])) for name in missing))
"""


def test_a_file_is_read_from_its_list_of_names_on() -> None:
    assert from_list("import os\n__all__ = ['A']\n") == "__all__ = ['A']\n"
    assert from_list("__all__ = ['A']\n") == "__all__ = ['A']\n"
    assert from_list("x = '__all__'\n  __all__ = []\n") == ""
    assert from_list("__all__ = [\n]\nx = 1\n__all__ = [\n    'B',\n]\n") == "__all__ = [\n    'B',\n]\n"


def test_transformers_has_the_same_names() -> None:
    def names(how: str) -> str:
        return subprocess.run([sys.executable, "-c", NAMES, how], check=True, capture_output=True, text=True).stdout

    assert names("quickly") == names("as it is")


def test_a_process_that_gets_no_settings_ends_without_a_word() -> None:
    spawned = spawning.spawn()
    with spawned.ours:
        _, _ = spawned.process.communicate(timeout=60)
    assert spawned.process.returncode == 0


def test_the_one_begun_early_is_taken_first(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = list[object]()
    monkeypatch.setattr(spawning, "spawn", lambda: begun.append(object()) or begun[-1])
    spawning.spawn_early()
    assert spawning.take_spawned() is begun[0]
    assert spawning.take_spawned() is begun[1]


def test_forms_are_found_beside_the_imports() -> None:
    threads = torch.get_num_threads()
    early_forms.begin_forms(device="cuda", dtype="auto")
    early_forms.begin_forms(device="cpu", dtype="float32")
    assert not [thread for thread in threading.enumerate() if thread.name == "evs-forms"]
    early_forms.begin_forms(device="cpu", dtype="bfloat16")
    early_forms.await_forms()
    found = linear_forms.best_forms.cache_info()
    assert found.currsize == 1
    assert torch.get_num_threads() == threads
    later = list[int]()
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [threads]
