"""The probe of product forms (runner/linear_forms.py) while modules are imported, which leaves a core idle. Owns that
thread; knows nothing of what the probe finds.
"""

from __future__ import annotations

import threading

import torch

from runner.linear_forms import best_forms

_begun: list[threading.Thread] = []


def begin_forms(*, device: str, dtype: str) -> None:
    """device, dtype: as settings name them. Begins where the forms may be asked for: bfloat16 on a CPU."""
    if device == "cuda" or dtype not in ("auto", "bfloat16") or _begun:
        return
    thread = threading.Thread(target=_find, args=(device,), name="evs-forms", daemon=True)
    _begun.append(thread)
    thread.start()


def await_forms() -> None:
    """Before the forms are asked for, and before threads are begun that compute: the number of theirs is the one that
    was set last, which is the caller's from here on."""
    while _begun:
        _begun.pop().join()
        torch.set_num_threads(torch.get_num_threads())


def _find(device: str) -> None:
    if device == "cpu" or not torch.cuda.is_available():
        best_forms()
