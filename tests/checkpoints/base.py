"""What the recipes of tiny random checkpoints share. Weights are scaled so that logits spread by at least 1 and
depend on positions; a tokenizer over bytes needs no training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

QWEN_MARKS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
    "<|video_pad|>",
)  # fmt: skip
CHATML = (
    "{%- for m in messages -%}<|im_start|>{{ m.role }}\n{%- if m.content is string %}{{ m.content }}{% else %}"
    "{%- for c in m.content %}{% if c.type == 'video' %}VIDEO{% elif c.type == 'image' %}IMAGE"
    "{% elif c.type == 'text' %}{{ c.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer(
    marks: tuple[str, ...], *, eos: str, pad: str, chat_template: str | None, **named: Any
) -> PreTrainedTokenizerFast:
    """A vocabulary of the 256 bytes and a few merges, so that token borders matter, plus the special `marks`. named:
    marks that a processor looks up by a name of its own."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("i", "n"), ("Ġ", "the"), ("h", "a"), ("ha", "t"), ("s", "e"), ("o", "n")]
    vocab = {token: index for index, token in enumerate([*letters, *("".join(pair) for pair in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=eos,
        pad_token=pad,
        chat_template=chat_template,
        additional_special_tokens=list(marks),
        **named,
    )


def scale_weights(model: torch.nn.Module, *, seed: int, head_gain: float) -> None:
    """Redraw every weight at a size that keeps activations near 1 through the depth, and the head larger."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            if parameter.ndim == 1:
                base = 0.0 if name.endswith("bias") else 1.0
                parameter.copy_(base + 0.1 * torch.randn(parameter.shape, generator=generator))
                continue
            fan_in = parameter[0].numel()
            gain = 1.0 if "embed" in name else head_gain if "lm_head" in name else 1.5
            scale = gain if "embed" in name else gain / fan_in**0.5
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))


def save(folder: Path, model: Any, processor: Any) -> None:
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["model_type"]
