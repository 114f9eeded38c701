"""What tells a Qwen3-VL-Embedding checkpoint from a chat model of the same class, and how its authors' own tools write
and sample. Owns these facts; knows no model and no request.

The layout is that of Qwen3-VL; what differs is beside the weights: the pooling files of sentence-transformers, or the
script that the first releases came with.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from runner.errors import EngineStartError
from runner.families.embedding import EmbeddingPolicy
from runner.pooling import Pooling
from runner.requests import VideoOptions

INSTRUCTION = "Represent the user's input."
SCRIPT = "scripts/qwen3_vl_embedding.py"
POOLING = "1_Pooling/config.json"
MODULES = "modules.json"
# Of the authors' tools, in cells: a picture, a frame, and the frames of a clip together, of which a slot holds two.
MIN_IMAGE_CELLS, MAX_IMAGE_CELLS, MAX_FRAME_CELLS, MAX_CLIP_CELLS = 4, 1800, 768, 7680
FPS, MAX_FRAMES = 1.0, 64


def read_embedding_policy(folder: str, *, cell: int) -> EmbeddingPolicy:
    """The policy of the checkpoint in `folder`; a chat model's is to read its last row and to say nothing before.

    cell: pixels of a cell's side. Raises EngineStartError for a pooling that is not served.
    """
    root = Path(folder)
    if not any((root / name).is_file() for name in (POOLING, MODULES, SCRIPT)):
        return EmbeddingPolicy()
    area = cell * cell
    return EmbeddingPolicy(
        pooling=_read_pooling(root / POOLING),
        instruction=_read_instruction(root / "config_sentence_transformers.json"),
        image=VideoOptions(min_pixels=MIN_IMAGE_CELLS * area, max_pixels=MAX_IMAGE_CELLS * area),
        video=VideoOptions(
            fps=FPS, max_frames=MAX_FRAMES, max_pixels=MAX_FRAME_CELLS * area, max_tokens=MAX_CLIP_CELLS
        ),
    )


def _read_pooling(path: Path) -> Pooling:
    """sentence-transformers names the mode, or sets one of several switches; without the file it is the last row."""
    values = _read_json(path)
    modes = {"lasttoken", "mean"} & {str(values.get("pooling_mode", ""))}
    modes |= {"lasttoken"} if values.get("pooling_mode_lasttoken") else set()
    modes |= {"mean"} if values.get("pooling_mode_mean_tokens") else set()
    if len(modes) > 1 or (values and not modes):
        raise EngineStartError(f"the checkpoint's {POOLING} asks for a pooling that is not served: last token or mean")
    return "mean" if modes == {"mean"} else "last"


def _read_instruction(path: Path) -> str:
    values = _read_json(path)
    prompts = values.get("prompts") or {}
    named = prompts.get(values.get("default_prompt_name") or "", "")
    return str(named).strip() or INSTRUCTION


def _read_json(path: Path) -> dict[str, Any]:
    """An absent file says nothing."""
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text())
    except ValueError as error:
        raise EngineStartError(f"the checkpoint's {path.name} is not JSON") from error
    return values if isinstance(values, dict) else {}
