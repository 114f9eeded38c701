"""Language models without a tower, which guess for those with one. Owns which are taken; knows no pictures and no
pages."""

from __future__ import annotations

from typing import Any

import torch

from attention.protocol import PlannedAttention
from runner.errors import EngineStartError
from runner.families.base import DecoderShape, VisualRows
from runner.families.common import decoder_shape
from runner.families.decoder import Decoder

SERVED = ("llama", "qwen2", "qwen3")


class TextOnly:
    """model: transformers' causal language model of a kind in SERVED."""

    def __init__(self, model: Any) -> None:
        if model.config.model_type not in SERVED:
            raise EngineStartError(
                f"a language model of type {model.config.model_type!r} cannot guess for another; taken are "
                f"{', '.join(SERVED)}, and every family that is served"
            )
        self._model = model
        self._decoder = Decoder(model.model)

    @property
    def shape(self) -> DecoderShape:
        return decoder_shape(self._model.config, self._model.model, rope_axes=1, num_planes=0)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        embeds: torch.Tensor = self._model.model.embed_tokens(token_ids)
        return embeds

    def forward(
        self, embeds: torch.Tensor, positions: torch.Tensor, visual: VisualRows | None, planned: PlannedAttention
    ) -> torch.Tensor:
        assert visual is None
        return self._decoder.forward(embeds, positions, None, planned)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._model.lm_head(hidden).float()
        return logits
