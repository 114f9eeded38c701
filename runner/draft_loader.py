"""Loads the model that guesses for another. Owns what it must have in common with it; knows no requests."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import torch
from transformers import AutoModelForCausalLM

from attention.bridge import register_attention
from attention.protocol import KVLayout
from runner.config import EngineConfig
from runner.draft_model import LanguageModel
from runner.errors import EngineStartError
from runner.families.text_only import SERVED, TextOnly
from runner.linear_forms import arrange_linears
from runner.loader import LoadedModel, OnProgress, find_checkpoint, load_model, read_config, saying_what_fails
from runner.weightless import load_weights


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadedDraft:
    """A language model that fits its target."""

    name: str
    model: LanguageModel
    dtype: torch.dtype
    device: torch.device

    def layout(self, *, num_pages: int, page_size: int) -> KVLayout:
        """Pages for its own keys."""
        shape = self.model.shape
        return KVLayout(
            num_layers=shape.num_layers, num_pages=num_pages, page_size=page_size, num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim, dtype=self.dtype, device=self.device, layers=shape.layers,
        )  # fmt: skip


def load_draft(config: EngineConfig, target: LoadedModel, on_progress: OnProgress) -> LoadedDraft:
    """A language model, or a checkpoint of a served family, whose tower stays unused, in the target's dtype. Raises
    EngineStartError for one of another vocabulary."""
    name = config.speculating.model
    assert name is not None
    draft = _load(config, name, target, on_progress)
    ours, theirs = target.family.shape.vocab_size, draft.model.shape.vocab_size
    if ours != theirs:
        raise EngineStartError(
            f"--speculative-model {name} has a vocabulary of {theirs} tokens, and {config.model} one of {ours}; "
            "choose a smaller model of the same family"
        )
    return draft


def _load(config: EngineConfig, name: str, target: LoadedModel, on_progress: OnProgress) -> LoadedDraft:
    folder = find_checkpoint(name, None, on_progress)
    if read_config(folder).model_type not in SERVED:
        dtype = str(target.dtype).removeprefix("torch.")
        wanted = msgspec.structs.replace(config, model=str(folder), revision=None, dtype=dtype)
        return LoadedDraft(
            name=name, model=load_model(wanted, on_progress).family, dtype=target.dtype, device=target.device
        )
    with saying_what_fails(folder):
        model = load_weights(
            AutoModelForCausalLM,
            folder,
            dtype=target.dtype,
            attn_implementation=register_attention(),
            use_safetensors=True,
        )
    draft = TextOnly(model.to(target.device).eval())
    arrange_linears(model)
    return LoadedDraft(name=name, model=draft, dtype=target.dtype, device=target.device)
