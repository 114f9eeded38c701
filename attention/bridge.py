"""The one place that teaches transformers our attention. Knows transformers' calling convention and nothing of models.

The planned step travels through the decoder's keyword arguments as `planned`: explicit, and never a global.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface

from attention.protocol import PlannedAttention

# Not registered in transformers' mask interface, so that decoders build no mask: causality, windows and packing are
# the backend's work.
ATTENTION_NAME = "evserve_paged"


def register_attention() -> str:
    """Register `ATTENTION_NAME` with transformers (again is harmless) and return it."""
    AttentionInterface.register(ATTENTION_NAME, paged_attention_forward)
    return ATTENTION_NAME


def paged_attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    planned: PlannedAttention,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function. query: (1, H, S, K); key, value: (1, KH, S, K). Returns ((1, S, H, K),
    None)."""
    assert attention_mask is None, "a mask reached the paged backend: the decoder was given one, or built one"
    layer = module.layer_idx
    assert isinstance(layer, int)
    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
    return planned.run(layer, q, k, v, scaling)[None], None
