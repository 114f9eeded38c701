"""From a folder or hub id to a loaded family. Owns finding and loading checkpoints and the words said when that fails;
knows no requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor
from transformers.utils import logging as transformers_logging

from attention.bridge import register_attention
from runner.config import EngineConfig
from runner.early_forms import await_forms
from runner.errors import EngineStartError
from runner.families.base import Family
from runner.families.registry import ADAPTERS, choose_adapter, import_adapter
from runner.linear_forms import arrange_linears
from runner.tokenizer import PromptTokenizer
from runner.weightless import load_weights

OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadedModel:
    family: Family
    tokenizer: PromptTokenizer
    device: torch.device
    dtype: torch.dtype
    parameters: int
    weight_bytes: int


def load_model(config: EngineConfig, on_progress: OnProgress) -> LoadedModel:
    """Load weights once, as safetensors, in the wanted dtype. Raises EngineStartError with what to do."""
    folder = find_checkpoint(config.model, config.revision, on_progress)
    chosen = choose_adapter(read_config(folder))
    if chosen.adapter is None:
        raise EngineStartError(f"{chosen.why}. Adapters of their own have: {', '.join(sorted(ADAPTERS))}")
    adapter = import_adapter(chosen.adapter)  # before loading: an adapter may have to make its processor loadable
    device = _device(config)
    dtype = _dtype(config, folder, device)
    model, processor = _load(folder, device, dtype, on_progress)
    parameters = sum(p.numel() for p in model.parameters())
    await_forms()
    family = adapter(model, processor)
    arrange_linears(model)
    return LoadedModel(
        family=family,
        tokenizer=PromptTokenizer(processor.tokenizer),
        device=device,
        dtype=dtype,
        parameters=parameters,
        weight_bytes=parameters * dtype.itemsize,
    )


def find_checkpoint(model: str, revision: str | None, on_progress: OnProgress) -> Path:
    """A local folder as it is; anything else is a hub id, taken from the local cache or downloaded."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise EngineStartError(f"the folder {model} has no config.json: it is not a checkpoint in hub layout")
        return folder
    if folder.is_absolute() or model.startswith((".", "~")) or model.count("/") != 1:
        raise EngineStartError(f"{model} is neither a folder that exists nor a hub id of the form owner/name")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    on_progress("download", 0, 0)
    wanted = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=wanted))
    except RepositoryNotFoundError as error:
        raise EngineStartError(
            f"the hub has no model {model}; check the name, or set HF_TOKEN if it is private"
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise EngineStartError(
            f"{model} is not in the local cache and the hub cannot be reached. Download it where there is a "
            f"network with `hf download {model} --local-dir FOLDER` and serve that folder: `evs serve FOLDER`"
        ) from error


def read_config(folder: Path) -> Any:
    """transformers' config of a checkpoint. Raises EngineStartError for one that it does not know."""
    try:
        kind: str = json.loads((folder / "config.json").read_text())["model_type"]
        return AutoConfig.from_pretrained(folder)
    except (json.JSONDecodeError, KeyError) as error:
        raise EngineStartError(f"{folder.name}/config.json names no model_type") from error
    except ValueError as error:
        known = ", ".join(sorted(ADAPTERS))
        raise EngineStartError(f"no family serves model type {kind!r}; served are: {known}") from error


def _device(config: EngineConfig) -> torch.device:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise EngineStartError("--device cuda, but torch sees no CUDA device; use --device cpu")
    name = "cuda" if config.device == "auto" and torch.cuda.is_available() else config.device
    return torch.device("cpu" if name == "auto" else name)


def _dtype(config: EngineConfig, folder: Path, device: torch.device) -> torch.dtype:
    """The checkpoint's own dtype unless asked otherwise; float16 is not computed on CPUs and becomes bfloat16."""
    name: str = config.dtype
    if name == "auto":
        declared = AutoConfig.from_pretrained(folder).dtype
        name = str(declared or torch.float32).removeprefix("torch.")
        if name == "float16" and device.type == "cpu":
            name = "bfloat16"
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _load(folder: Path, device: torch.device, dtype: torch.dtype, on_progress: OnProgress) -> tuple[Any, Any]:
    _report_progress(on_progress)
    # The tower's own attention is used by the generic adapter alone, and is whatever it can do.
    attention = {"text_config": register_attention()}
    try:
        with saying_what_fails(folder):
            processor = AutoProcessor.from_pretrained(folder)
            model = load_weights(
                AutoModelForImageTextToText, folder, dtype=dtype, attn_implementation=attention, use_safetensors=True
            )
    finally:
        transformers_logging.set_tqdm_hook(None)
    return model.to(device).eval(), processor


@contextmanager
def saying_what_fails(folder: Path) -> Iterator[None]:
    """What transformers raises for a checkpoint that it cannot load becomes an EngineStartError."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise EngineStartError(f"the checkpoint {folder.name} cannot be loaded: {error}") from error


def _report_progress(on_progress: OnProgress) -> None:
    """transformers' progress bars become our progress messages."""

    def hook(_factory: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return _Reporter(on_progress, *args, **kwargs)

    transformers_logging.set_tqdm_hook(hook)


class _Reporter:
    """Stands in for a tqdm bar."""

    def __init__(self, on_progress: OnProgress, iterable: Any = None, total: int | None = None, **_: Any) -> None:
        self._on_progress = on_progress
        self._iterable = iterable
        self._total = total if total is not None else (len(iterable) if hasattr(iterable, "__len__") else 0)
        self._done = 0

    def __iter__(self) -> Any:
        for entry in self._iterable:
            yield entry
            self.update()

    def __enter__(self) -> _Reporter:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, count: int = 1) -> None:
        self._done += count
        self._on_progress("weights", self._done, self._total)

    def set_postfix(self, *_: object, **__: object) -> None:
        return None

    set_description = set_postfix_str = refresh = set_postfix

    def close(self) -> None:
        return None
