"""The seam between the engine and a model family. Owns the protocol and its types; knows no particular model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import torch

from attention.protocol import LayerAttention, PlannedAttention
from runner.items import MediaItem
from runner.requests import ChatMessage, VideoOptions
from vision.frames import VideoFrames
from vision.patches import PatchGrid
from vision.request import DecodeRequest
from vision.towers.packed import EncodedCells, PatchBatch

Kind = Literal["image", "video"]
# Which rows of a prompt see each other, also forwards: none; those of one placeholder's run (an image, a frame of a
# clip); an item from its first cell to its last, text between them included; the whole prompt.
PrefixRule = Literal["none", "run", "item", "prompt"]

# In a run of cells: a row that stands for no cell, such as the newline after a clip. It is never pruned, and what it
# reads as is the embedding of its placeholder token.
STRUCTURAL = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """What the engine must know of a family's language model to give it memory."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    max_positions: int
    rope_axes: int
    num_planes: int  # deepstack levels added to the first layers
    layers: tuple[LayerAttention, ...] = ()  # what each layer sees; empty: everything before
    prefix: PrefixRule = "none"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ItemText:
    """How one item is written in the prompt: `text` stands where the template put the item's placeholder.

    The text holds the placeholder token once for each entry of `runs`; an entry is the (n,) int64 cell numbers
    (t * P + p) which that placeholder stands for before pruning, STRUCTURAL where it stands for none.

    Worked example, a clip of 2 slots x 2 cells in Qwen3-VL: text "<0.2 seconds><start><pad><end><1.2 seconds><start>
    <pad><end>", runs ([0, 1], [2, 3]).
    """

    text: str
    runs: tuple[np.ndarray, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DenseSpan:
    """Rows [start, start + len(cells)) of a dense prompt that stand for these cells (or STRUCTURAL) of one item."""

    item: int
    start: int
    cells: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VisualRows:
    """The rows of a step that are cells: their row numbers (n,) int64, and their deepstack planes, each (n, D)."""

    rows: torch.Tensor
    planes: tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDefaults:
    """The checkpoint's own wishes; a request's values stand over them. temperature 0 is greedy."""

    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    suppressed_token_ids: tuple[int, ...] = field(default=())


class Family(Protocol):
    """One model family over one loaded checkpoint. The model's thread alone calls what takes or returns tensors."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> DecoderShape: ...
    @property
    def defaults(self) -> GenerationDefaults: ...
    @property
    def modalities(self) -> tuple[Kind, ...]: ...

    # ----------------------------------------------------------------------------------------------- pictures
    def decode_request(self, kind: Kind, options: VideoOptions, siblings: int) -> DecodeRequest:
        """How this family wants a clip or image sampled and resized. Raises MediaError for options it cannot do.

        siblings: how many items of this kind the request holds; some families cut a lone image finer.
        """
        ...

    def patch_grid(self, frames: VideoFrames) -> PatchGrid: ...

    # ------------------------------------------------------------------------------------------------- prompt
    def render(self, chat: Sequence[ChatMessage]) -> str:
        """The checkpoint's chat template over the chat, with one untouched placeholder for each item."""
        ...

    def placeholder_pattern(self, kind: Kind) -> str:
        """Regular expression of what `ItemText.text` replaces in the rendered chat."""
        ...

    def placeholder_id(self, kind: Kind) -> int: ...

    def write_item(self, item: MediaItem) -> ItemText: ...

    def positions(self, length: int, spans: Sequence[DenseSpan], items: Sequence[MediaItem]) -> np.ndarray:
        """(rope_axes, length) int64 position ids of a dense prompt."""
        ...

    # -------------------------------------------------------------------------------------------------- model
    def patch_batch(self, item: MediaItem, slot_start: int, slot_stop: int) -> PatchBatch: ...

    def encode(self, batch: PatchBatch) -> EncodedCells: ...

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """(S,) int64 -> (S, D). Rows of cells are written over afterwards; structural rows keep what stands here."""
        ...

    def forward(
        self,
        embeds: torch.Tensor,
        positions: torch.Tensor,
        visual: VisualRows | None,
        planned: PlannedAttention,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """embeds (S, D), positions (rope_axes, S) -> hidden states after the final norm: (S, D), or (n, D) of the
        `wanted` rows, (n,) int64."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(n, D) -> (n, V) float32."""
        ...
