"""InternVL's vision tower over packed patches: each picture is attended together with a row of its own that stands for
no patch. Reuses the tower's own submodules; owns only where rows are placed and how they are attended. Source: the
InternVL papers and transformers' modules, which tests hold it against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from vision.towers.arranged import Arranged, Attends, Read, View
from vision.towers.keys import Segments
from vision.towers.packed import EncodedCells, PatchBatch, embed_patches
from vision.towers.rotary import Attend


class InternVLTower:
    """module: transformers' InternVLVisionModel; each picture has the tower's own size. project: (R, D_vision) states
    after the last layer and the tower's final norm to (N, D) cells."""

    def __init__(self, module: Any, project: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._module, self._project = module, project

    @property
    def weight(self) -> torch.Tensor:
        weight: torch.Tensor = self._module.embeddings.patch_embeddings.projection.weight
        return weight

    def arrange(self, batch: PatchBatch) -> Arranged:
        segments, places = with_leaders(batch.cu_seqlens)
        table = np.zeros(segments[-1], dtype=np.int64)
        across = self._module.embeddings.patch_embeddings.patch_shape[1]
        table[places] = 1 + batch.rows * across + batch.cols
        return Arranged(
            arrays={"patches": places, "table": table},
            views={"pictures": View(segments=Segments(cu_seqlens=segments))},
        )

    def run(self, pixel_values: torch.Tensor, read: Read, attend: Attends) -> EncodedCells:
        tower = self._module
        hidden = self._embed(pixel_values, read)
        for layer in tower.encoder.layer:
            attended = _attention(layer.attention, layer.layernorm_before(hidden), attend["pictures"])
            hidden = hidden + layer.lambda_1 * attended
            hidden = hidden + layer.lambda_2 * layer.mlp(layer.layernorm_after(hidden))
        return EncodedCells(embeddings=self._project(tower.layernorm(hidden[read["patches"]])))

    def _embed(self, pixel_values: torch.Tensor, read: Read) -> torch.Tensor:
        """(R + pictures, D) rows with positions added."""
        embeddings = self._module.embeddings
        patches = embed_patches(embeddings.patch_embeddings.projection, pixel_values)
        hidden: torch.Tensor = embeddings.cls_token[0].to(patches).repeat(len(read["table"]), 1)
        hidden[read["patches"]] = patches
        if embeddings.position_embeddings is not None:
            hidden = hidden + embeddings.position_embeddings[0, read["table"]]
        return hidden


def with_leaders(cu_seqlens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Segments one row longer, that row in front: their cu_seqlens, and where the old rows stand among the new.

    Worked example: cu_seqlens [0, 2, 5] gives [0, 3, 7], and rows 0 to 4 stand at 1, 2, 4, 5, 6.
    """
    lengths = np.diff(cu_seqlens)
    segment = np.repeat(np.arange(len(lengths)), lengths)
    return cu_seqlens + np.arange(len(cu_seqlens)), np.arange(len(segment)) + segment + 1


def _attention(attn: Any, hidden: torch.Tensor, attend: Attend) -> torch.Tensor:
    q, k = attn.q_norm(attn.q_proj(hidden)), attn.k_norm(attn.k_proj(hidden))
    q, k, v = (x.view(len(hidden), attn.num_heads, attn.head_dim) for x in (q, k, attn.v_proj(hidden)))
    projected: torch.Tensor = attn.projection_layer(attend(q, k, v, attn.scale).flatten(1))
    return projected
