"""Without torch's compiler until something asks for it: it is the real one then."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

SCRIPT = """
import sys
from runner.engine_process import MODELLING
from runner.quick_transformers import shorten_start
from vision.quick_imports import import_quickly

import_quickly("torchvision.transforms.v2.functional")
shorten_start()
import_quickly("runner.service", *MODELLING)
from runner.loader import EngineConfig, load_model
load_model(EngineConfig(model=sys.argv[1], served_name="m"), lambda *_: None)
assert "torch._dynamo" not in sys.modules and "sympy" not in sys.modules
import torch
from torchvision.transforms.v2 import functional as tv
assert tv.resize(torch.zeros(3, 8, 8, dtype=torch.uint8), [4, 4]).shape == (3, 4, 4)
assert "torch._dynamo" not in sys.modules

from transformers.masking_utils import TransformGetItemToIndex
with TransformGetItemToIndex():
    import torch._dynamo
from torchvision.ops.roi_align import is_compile_supported
assert is_compile_supported("cpu") == torch._dynamo.utils.is_compile_supported("cpu")
assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)).tolist() == [2.0, 2.0]
import_quickly("torchvision.ops")
assert sys.modules["torch._dynamo"] is torch._dynamo
"""
WANTS_MORE = """
import sys
import vision.quick_imports as quick_imports

quick_imports.NAMES["torch._dynamo.utils"] = ()
quick_imports.import_quickly("torchvision.ops.roi_align")
assert "is_compile_supported" in dir(sys.modules["torchvision.ops.roi_align"]) and "sympy" in sys.modules
"""


def run(script: str, *args: str) -> None:
    subprocess.run([sys.executable, "-c", script, *args], check=True)


def test_the_compiler_comes_when_it_is_asked_for(checkpoint: Callable[[str], Path]) -> None:
    run(SCRIPT, str(checkpoint("qwen2_5_vl")))


def test_versions_that_want_more_of_it_get_it_at_once() -> None:
    run(WANTS_MORE)
