"""What a checkpoint is, which adapter it would get and why. Owns the looking; loads no weights and starts nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from runner.errors import EngineStartError
from runner.families.registry import GENERIC, choose_adapter
from runner.loader import read_config


def describe_model(model: str) -> dict[str, Any]:
    """Facts for people, in reading order. model: a folder or a hub id, of which the config alone is read."""
    try:
        config = _find_config(model)
        chosen = choose_adapter(config)
    except EngineStartError as error:
        return {"model": model, "adapter": "none", "why": str(error)}
    text = config.get_text_config(decoder=True)
    return {
        "model": model,
        "model type": config.model_type,
        "adapter": _name(chosen.adapter),
        "why": chosen.why,
        "text decoder": text.model_type,
        "layers": _layers(text),
    }


def _name(adapter: str | None) -> str:
    if adapter is None or adapter == GENERIC:
        return "none" if adapter is None else "generic"
    return adapter.split(":")[0].rpartition(".")[2]


def _find_config(model: str) -> Any:
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise EngineStartError(f"the folder {model} has no config.json: it is not a checkpoint in hub layout")
        return read_config(folder)
    try:
        return AutoConfig.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise EngineStartError(f"neither a folder nor a model whose config can be read: {error}") from error


def _layers(text: Any) -> str:
    """Worked example: "26 (22 sliding_attention of 1024 rows, 4 full_attention)"."""
    types = getattr(text, "layer_types", None)
    if not types:
        return str(text.num_hidden_layers)
    window = getattr(text, "sliding_window", None)
    words = [
        f"{count} {kind}" + (f" of {window} rows" if kind == "sliding_attention" else "")
        for kind, count in Counter(types).most_common()
    ]
    return f"{len(types)} ({', '.join(words)})"
