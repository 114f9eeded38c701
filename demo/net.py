"""Owns the demo model's forward passes for training, over transformers' modules and weights: a packed tower with or
without dropped cells, and the decoder under a mask. Knows nothing of losses.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.models.qwen3_vl import modeling_qwen3_vl as qwen

from demo.mp4 import Frames
from demo.prompts import Prompts
from demo.pruning import Keep
from demo.tokens import VOCABULARY, Words

PATCH, MERGE, TEMPORAL = 16, 2, 2
PATCHES_OF_CELL = MERGE * MERGE
MIDDLE = 3
POINTERS = ((4, 0), (5, 0))
"""(layer, head): the first is taught to look at what an answer is about, the second at when that was."""


def make_config(words: Words) -> Qwen3VLConfig:
    """8.7 million parameters: 256 wide and 6 deep for text, 192 wide and 4 deep for pictures."""
    text = {
        "vocab_size": VOCABULARY, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 6,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 8192,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [12, 10, 10], "mrope_interleaved": True,
        },
        "tie_word_embeddings": True, "eos_token_id": words.end, "pad_token_id": words.end_of_text,
    }  # fmt: skip
    vision = {
        "depth": 4, "hidden_size": 192, "intermediate_size": 512, "num_heads": 3, "patch_size": PATCH,
        "spatial_merge_size": MERGE, "temporal_patch_size": TEMPORAL, "out_hidden_size": 256,
        "num_position_embeddings": 144, "deepstack_visual_indexes": [1, 2],
    }  # fmt: skip
    return Qwen3VLConfig(
        text_config=text, vision_config=vision, image_token_id=words.image_pad, video_token_id=words.video_pad,
        vision_start_token_id=words.vision_start, vision_end_token_id=words.vision_end, tie_word_embeddings=True,
    )  # fmt: skip


def make_model(words: Words, seed: int) -> Qwen3VLForConditionalGeneration:
    """A model of random weights."""
    torch.manual_seed(seed)
    return Qwen3VLForConditionalGeneration(make_config(words)).float()


def load_model(folder: Path) -> Qwen3VLForConditionalGeneration:
    return Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)


def teach_words(model: Qwen3VLForConditionalGeneration, old: Words, new: Words) -> None:
    """Give tokens that `new` has and `old` has not the mean of their pieces' embeddings."""
    table = model.model.language_model.embed_tokens.weight
    known = old.tokenizer.get_vocab()
    with torch.no_grad():
        for token, number in new.tokenizer.get_vocab().items():
            if token not in known:
                text = new.tokenizer.decode([number])
                table[number] = table[list(old.of(text))].mean(0)


def keep_tower(model: Qwen3VLForConditionalGeneration) -> None:
    """The tower and the words stay as they are: nothing flows back into them."""
    for part in (model.model.visual, model.model.language_model.embed_tokens):
        part.requires_grad_(False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Encoded:
    """cells (N, D) in the order of clips, slots and places; planes: of deepstack, alike. N: all cells of a clip under
    `full`, those kept under `reuse`."""

    cells: torch.Tensor
    planes: tuple[torch.Tensor, ...]

    def pick(self, places: torch.Tensor) -> Encoded:
        """The rows at (M,) places."""
        return Encoded(cells=self.cells[places], planes=tuple(plane[places] for plane in self.planes))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Owners:
    """kept (R,): patches that get a row, counted over all clips and slots. rows (B * T * n,): which row stands for each
    patch: its own, or that of the last slot that kept it."""

    kept: torch.Tensor
    rows: torch.Tensor


def find_owners(keeps: list[Keep]) -> Owners:
    """Worked example, patches of one cell each: keep [[1, 1], [0, 1], [1, 0]] has kept [0, 1, 3, 4] and rows
    [0, 1, 0, 2, 3, 2]."""
    return _own(np.stack(keeps).repeat(PATCHES_OF_CELL, axis=2))


def _own(keep: Keep) -> Owners:
    """keep (B, T, n): of patches."""
    if not keep[:, 0].all():
        raise ValueError("slot 0 must be kept whole: nothing could stand for its cells")
    slots = np.where(keep, np.arange(keep.shape[1])[None, :, None], 0)
    last = np.maximum.accumulate(slots, axis=1)  # (B, T, n)
    numbers = np.cumsum(keep.reshape(-1)).reshape(keep.shape) - 1
    rows = np.take_along_axis(numbers, last, axis=1)
    return Owners(kept=torch.as_tensor(np.flatnonzero(keep)), rows=torch.as_tensor(rows.reshape(-1)))


def cut_patches(frames: Frames) -> torch.Tensor:
    """(B, T, H, W, 3) uint8 to (B * S * n, 1536) float32 in [-1, 1], the four patches of a cell side by side."""
    clips, count, height, width, _ = frames.shape
    down, across = height // PATCH // MERGE, width // PATCH // MERGE
    x = torch.as_tensor(frames).reshape(clips, count // 2, 2, down, MERGE, PATCH, across, MERGE, PATCH, 3)
    return x.permute(0, 1, 3, 6, 4, 7, 9, 2, 5, 8).reshape(-1, 3 * TEMPORAL * PATCH * PATCH).float().div(127.5).sub(1)


class Tower:
    """The vision tower over clips of one size."""

    def __init__(self, model: Qwen3VLForConditionalGeneration) -> None:
        self.visual = model.model.visual

    def encode(self, frames: Frames, owners: Owners | None) -> Encoded:
        """frames (B, T, H, W, 3). Without owners every cell gets its row; with them only kept ones, `reuse`."""
        height, width = frames.shape[2] // PATCH, frames.shape[3] // PATCH
        patches, visual = cut_patches(frames), self.visual
        if owners is not None:
            patches = patches[owners.kept]
        proj = visual.patch_embed.proj  # as a product: the strided convolution's backward costs 40 % of a step
        x = F.linear(patches, proj.weight.flatten(1), proj.bias)
        learned, rope = self._positions(height, width)
        n = height * width
        places = torch.arange(len(x)) % n if owners is None else owners.kept % n
        x = x + learned.to(x.dtype).index_select(0, places)
        rotary = (rope[0][places], rope[1][places])
        planes = []
        for number, block in enumerate(visual.blocks):
            x = x + self._attend(block.attn, block.norm1(x), rotary, n, owners)
            x = x + block.mlp(block.norm2(x))
            if number in visual.deepstack_visual_indexes:
                merger = visual.deepstack_merger_list[visual.deepstack_visual_indexes.index(number)]
                planes.append(merger(x))
        return Encoded(cells=visual.merger(x), planes=tuple(planes))

    def _positions(self, height: int, width: int) -> tuple[torch.Tensor, Any]:
        """(n, D) learnt positions and the rotary tables of one slot."""
        visual, grid = self.visual, torch.tensor([[1, height, width]])
        places, weights = qwen.get_vision_interpolation_indices_and_weights(
            grid,
            num_grid_per_side=visual.num_grid_per_side,
            mode=visual.interpolation_mode,
            align_corners=visual.interpolation_align_corners,
            spatial_merge_size=MERGE,
            kwargs={},
        )
        learned = (visual.pos_embed(places) * weights[:, :, None]).sum(1)
        return learned, visual.rotary_pos_emb(learned, qwen.get_vision_position_ids(grid, MERGE, kwargs={}))

    @staticmethod
    def _attend(attn: Any, x: torch.Tensor, rotary: Any, n: int, owners: Owners | None) -> torch.Tensor:
        """Attention within each slot of n patches. Plain products: on windows this small they beat a fused kernel."""
        heads = attn.num_heads
        q, k, v = attn.qkv(x).reshape(len(x), 3, heads, -1).unbind(1)
        kind = v.dtype
        q, k = (t.to(kind) for t in qwen.apply_rotary_pos_emb_vision(q, k, *rotary))
        packed = torch.cat([q, k, v], dim=1).flatten(1)
        if owners is not None:
            packed = packed.index_select(0, owners.rows)
        q, k, v = packed.reshape(-1, n, 3, heads, q.shape[-1]).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
        out = (scores.float().softmax(-1).to(kind) @ v).transpose(1, 2).reshape(-1, x.shape[1])
        attended: torch.Tensor = attn.proj(out if owners is None else out.index_select(0, owners.kept))
        return attended


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class States:
    """last (B, L, D): after the final norm. cells (N, D): of the cells' rows after layer MIDDLE, which the layers
    behind it still read. scores (2, B, L, L): what the heads at POINTERS say before the softmax, row by row."""

    last: torch.Tensor
    cells: torch.Tensor
    scores: torch.Tensor


class Reader:
    """The decoder: hidden states and logits."""

    def __init__(self, model: Qwen3VLForConditionalGeneration) -> None:
        self.decoder = model.model.language_model
        self._middle = torch.empty(0)
        self.decoder.layers[MIDDLE].register_forward_hook(self._note)
        self._looks = dict[str, torch.Tensor]()
        for layer, _ in POINTERS:
            for name in ("q_norm", "k_norm"):
                norm = getattr(self.decoder.layers[layer].self_attn, name)
                norm.register_forward_hook(partial(self._note_look, f"{layer} {name}"))

    def _note(self, _module: Any, _args: Any, output: torch.Tensor) -> None:
        self._middle = output

    def _note_look(self, name: str, _module: Any, _args: Any, output: torch.Tensor) -> None:
        self._looks[name] = output

    def _point(self, positions: torch.Tensor) -> torch.Tensor:
        """(2, B, L, L) scores of the heads at POINTERS in the last pass, in float32."""
        cos, sin = self.decoder.rotary_emb(torch.empty(0), positions)
        found = []
        for layer, head in POINTERS:
            q, k = self._looks[f"{layer} q_norm"], self._looks[f"{layer} k_norm"]
            q, k = q[:, :, head : head + 1], k[:, :, head * k.shape[2] // q.shape[2]][:, :, None]
            q, k = qwen.apply_rotary_pos_emb(q.float(), k.float(), cos, sin, unsqueeze_dim=2)
            found.append(q[:, :, 0] @ k[:, :, 0].transpose(1, 2) * q.shape[-1] ** -0.5)
        self._looks = {}
        return torch.stack(found)

    def read(self, prompts: Prompts, clip: Encoded) -> States:
        """The clip's rows are those of the prompts' cells, in order."""
        embeddings = self.decoder.embed_tokens(prompts.ids)
        cells = prompts.cells[..., None].expand_as(embeddings)
        embeddings = embeddings.masked_scatter(cells, clip.cells.to(embeddings.dtype))
        states: torch.Tensor = self.decoder(
            inputs_embeds=embeddings,
            attention_mask=prompts.mask,
            position_ids=prompts.positions,
            visual_pos_masks=prompts.cells,
            deepstack_visual_embeds=list(clip.planes),
            use_cache=False,
        ).last_hidden_state
        middle, self._middle = self._middle, torch.empty(0)
        return States(last=states, cells=middle[prompts.cells], scores=self._point(prompts.positions))

    def read_texts(self, words: Words, texts: list[str]) -> torch.Tensor:
        """(B, D) unit vectors of texts: the last state of each as a chat's only turn."""
        rows = [(*words.user, *words.of(text), *words.assistant) for text in texts]
        length = -(-max(map(len, rows)) // 16) * 16
        ids = torch.full((len(rows), length), words.end_of_text)
        mask = torch.zeros(len(rows), length, dtype=torch.int64)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = torch.tensor(row)
            mask[number, : len(row)] = 1
        positions = torch.arange(length).expand(3, len(rows), length)
        states = self.decoder(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False)
        last = torch.tensor([len(row) - 1 for row in rows])
        return F.normalize(states.last_hidden_state[torch.arange(len(rows)), last].float(), dim=-1)

    def score(self, states: torch.Tensor) -> torch.Tensor:
        """Logits in float32."""
        return F.linear(states, self.decoder.embed_tokens.weight).float()
