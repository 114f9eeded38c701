"""transformers, untouched, as the oracle: its own processor on independently decoded frames, its own model, greedy,
no cache.

A turn is a list of parts: str, a picture (H, W, 3) uint8, or a Clip."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor
from transformers.video_utils import VideoMetadata

from runner.requests import ChatMessage, InlineBytes, MediaPart, TextPart
from tests.oracle_items import BY_ITEM
from tests.oracle_squares import prefix_masks


@dataclass(frozen=True, eq=False)
class Clip:
    """frames (F, H, W, 3) uint8 as any player shows them, at a constant rate."""

    frames: np.ndarray
    fps: float


Part = str | np.ndarray | Clip


@dataclass(frozen=True, eq=False)
class OracleAnswer:
    """prompt_ids (L,); position_ids (A, L) or None; token_ids and logits (n, V) of each greedy step."""

    prompt_ids: list[int]
    token_ids: list[int]
    logits: torch.Tensor
    inputs: dict[str, Any]


@lru_cache(maxsize=8)
def load_oracle(folder: Path) -> tuple[Any, Any]:
    text = AutoConfig.from_pretrained(folder).get_text_config()
    # By itself it takes torch's attention wherever that can be done, also where scores are bounded and it cannot.
    attention = None if getattr(text, "attn_logit_softcapping", None) is None else "eager"
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention)
    return model.eval(), AutoProcessor.from_pretrained(folder)


def prepare_inputs(processor: Any, turn: Sequence[Part]) -> dict[str, Any]:
    """Everything through transformers' processor: template, sampling, resize, patches, ids."""
    kinds = {str: "text", np.ndarray: "image", Clip: "video"}
    content = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": kinds[type(part)]} for part in turn
    ]
    text = processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )
    images = [Image.fromarray(part) for part in turn if isinstance(part, np.ndarray)]
    clips = [part for part in turn if isinstance(part, Clip)]
    arguments: dict[str, Any] = {"text": [text], "return_tensors": "pt"}
    if images:
        arguments["images"] = images
    if clips:
        arguments["videos"] = [torch.from_numpy(_padded(clip)).permute(0, 3, 1, 2) for clip in clips]
        arguments["video_metadata"] = [_metadata(clip) for clip in clips]
        # A clip of one picture cannot go through the sampler; it is a slot of that picture twice.
        arguments["do_sample_frames"] = all(len(clip.frames) > 1 for clip in clips)
    return dict(processor(**arguments))


def _padded(clip: Clip) -> np.ndarray:
    return clip.frames if len(clip.frames) > 1 else np.repeat(clip.frames, 2, axis=0)


def _metadata(clip: Clip) -> VideoMetadata:
    count, height, width, _ = clip.frames.shape
    indices = list(range(count)) if count > 1 else [0, 0]
    return VideoMetadata(
        total_num_frames=len(indices), fps=clip.fps, frames_indices=indices, height=height, width=width,
        duration=count / clip.fps,
    )  # fmt: skip


@torch.inference_mode()
def answer(folder: Path, turn: Sequence[Part], max_tokens: int, *, keep: np.ndarray | None = None) -> OracleAnswer:
    """keep: (L,) bool, the columns of the dense prompt that the text model gets to see. The model itself is untouched:
    it encodes, merges and positions the dense prompt, and the dropped columns are taken out in front of its decoder."""
    model, processor = load_oracle(folder)
    if keep is not None:
        text = getattr(model.model, "language_model", None) or model.model.text_model
        with _dropping_columns(model, text, keep):
            return _answer(model, processor, turn, max_tokens)
    return _answer(model, processor, turn, max_tokens)


@contextmanager
def _dropping_columns(model: Any, text_model: Any, keep: np.ndarray) -> Iterator[None]:
    types: list[torch.Tensor | None] = []

    def look(_module: Any, _args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        types[:] = [kwargs.get("token_type_ids")]

    def drop(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        embeds = kwargs["inputs_embeds"]
        length = embeds.shape[1]
        columns = torch.ones(length, dtype=torch.bool)
        columns[: len(keep)] = torch.from_numpy(keep)
        positions = kwargs.get("position_ids")
        if positions is None:
            positions = torch.arange(length)[None]
        changed = {
            "inputs_embeds": embeds[:, columns],
            "position_ids": positions[..., columns],
            "attention_mask": torch.ones(1, int(columns.sum()), dtype=torch.int64),
        }
        if types[0] is not None:
            changed["attention_mask"] = prefix_masks(model.config, changed, types[0][:, columns])
        masks = kwargs.get("visual_pos_masks")
        if masks is not None:
            changed["visual_pos_masks"] = masks[:, columns]
            changed["deepstack_visual_embeds"] = [p[columns[masks[0]]] for p in kwargs["deepstack_visual_embeds"]]
        return args, {**kwargs, **changed}

    handles = [
        model.model.register_forward_pre_hook(look, with_kwargs=True),
        text_model.register_forward_pre_hook(drop, with_kwargs=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _answer(model: Any, processor: Any, turn: Sequence[Part], max_tokens: int) -> OracleAnswer:
    by_item = BY_ITEM.get(model.config.model_type)
    inputs = prepare_inputs(processor, turn) if by_item is None else by_item(model, processor, turn)
    ids = inputs.pop("input_ids")
    types = inputs.pop("mm_token_type_ids", None)
    inputs.pop("attention_mask", None)
    next_type = inputs.pop("next_token_type", None)
    suppressed = [getattr(model.config, f"{kind}_token_id", None) for kind in ("image", "video")]
    prompt = ids[0].tolist()
    positions = _prompt_positions(model, ids, types, inputs)
    steps, tokens = [], []
    for _ in range(max_tokens):
        extra = {} if types is None else {"mm_token_type_ids": types}
        if positions is not None:
            after = positions.max() + 1 + torch.arange(len(tokens)).expand(len(positions), 1, -1)
            extra["position_ids"] = torch.cat((positions, after), dim=-1)
        # All ones, always: without a mask, gapped positions are read as several packed sequences.
        out = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **extra, **inputs)
        logits = out.logits[0, -1].float()
        choice = logits.clone()
        choice[[token for token in suppressed if token is not None]] = -torch.inf
        steps.append(logits)
        tokens.append(int(choice.argmax()))
        ids = torch.cat((ids, torch.tensor([[tokens[-1]]])), dim=1)
        types = None if types is None else torch.cat((types, torch.zeros(1, 1, dtype=types.dtype)), dim=1)
        if next_type is not None:
            inputs["token_type_ids"] = F.pad(inputs["token_type_ids"], (0, 1), value=next_type)
    return OracleAnswer(prompt_ids=prompt, token_ids=tokens, logits=torch.stack(steps), inputs=inputs)


def _prompt_positions(
    model: Any, ids: torch.Tensor, types: torch.Tensor | None, inputs: dict[str, Any]
) -> torch.Tensor | None:
    """(A, 1, L) of a prompt with cells, as the model itself places them; None where it needs no telling.

    Generated tokens follow the *largest* position, which a long clip's cells can hold: that is what the model's own
    `rope_deltas` say, and what such models were trained with. A call without a cache (and `generate` of 5.24, which
    counts on from the last row) would place them after the last token instead, so positions are given.
    """
    if types is None or not types.any() or not hasattr(model.model, "get_rope_index"):
        return None
    names = ("image_grid_thw", "video_grid_thw", "second_per_grid_ts")
    given = {name: inputs[name] for name in names if name in inputs}
    positions: torch.Tensor = model.model.get_rope_index(ids, mm_token_type_ids=types, **given)[0]
    return positions


def worst_error(ours: torch.Tensor, oracle: torch.Tensor) -> float:
    """Largest difference of two (n, V) sets of logits or log-probabilities, over the oracle's spread; shift-free."""
    ours, oracle = (x.double() - x.double().mean(-1, keepdim=True) for x in (ours, oracle))
    return float(((ours - oracle).abs().amax(-1) / oracle.std(-1)).max())


def lossless_file(clip: Clip) -> bytes:
    """The clip as a Matroska file whose decoded pictures are its frames, bit for bit."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska") as container:
        stream = container.add_stream("ffv1", rate=Fraction(clip.fps).limit_denominator(1000))
        stream.height, stream.width = clip.frames.shape[1:3]
        stream.pix_fmt = "bgr0"
        for frame in clip.frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return buffer.getvalue()


def png_file(picture: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, format="PNG")
    return buffer.getvalue()


def as_message(turn: Sequence[Part]) -> ChatMessage:
    """The same turn as the engine takes it: real files in place of arrays."""

    def part(p: Part) -> TextPart | MediaPart:
        if isinstance(p, str):
            return TextPart(text=p)
        if isinstance(p, Clip):
            return MediaPart(kind="video", source=InlineBytes(data=lossless_file(p)))
        return MediaPart(kind="image", source=InlineBytes(data=png_file(p)))

    return ChatMessage(role="user", parts=tuple(part(p) for p in turn))


def noise_clip(seed: int, *, num_frames: int, size: tuple[int, int], fps: float = 2.0) -> Clip:
    """Smooth random pictures that change from frame to frame; size (height, width)."""
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 256, (num_frames, 5, 7, 3), dtype=np.uint8)
    frames = [np.asarray(Image.fromarray(frame).resize(size[::-1], Image.Resampling.BICUBIC)) for frame in coarse]
    return Clip(frames=np.stack(frames), fps=fps)


def noise_picture(seed: int, *, size: tuple[int, int]) -> np.ndarray:
    return noise_clip(seed, num_frames=1, size=size).frames[0]
