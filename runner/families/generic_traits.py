"""What a checkpoint's config says about whether the generic adapter can serve it. Owns the questions and the words of a
refusal; loads no weights and runs nothing."""

from __future__ import annotations

from typing import Any

from transformers import AutoModel, AutoModelForImageTextToText

SERVED_LAYERS = {"full_attention", "sliding_attention"}


def refusal_of(config: Any) -> str | None:
    """Why the generic adapter cannot serve a model of this config: the first reason found, or None."""
    model_class = model_class_of(config)
    if model_class is None:
        return f"transformers has no image-text-to-text model of type {config.model_type!r}"
    text = config.get_text_config(decoder=True)
    layers = set(getattr(text, "layer_types", None) or ()) - SERVED_LAYERS
    turns = _rope_parameters(text)
    reasons = (
        (getattr(config, "is_encoder_decoder", False), "it is an encoder-decoder, and only decoders are served"),
        (
            bool(getattr(text, "cross_attention_layers", None)),
            "its text decoder reads pictures by cross-attention, not in the place of tokens",
        ),
        (not hasattr(model_class, "get_image_features"), "its class in transformers has no get_image_features"),
        (getattr(config, "image_token_id", None) is None, "its config names no image_token_id"),
        (not turns, "its text decoder has no rotary positions"),
        (
            any("mrope_section" in found for found in turns) or hasattr(_base_class_of(config), "get_rope_index"),
            "its text decoder turns positions along several axes (M-RoPE), which is particular to each family",
        ),
        (bool(layers), f"its text decoder has layers of type {min(layers, default='')}, which keep no keys in pages"),
        (
            getattr(text, "attn_logit_softcapping", None) is not None,
            "its text decoder bounds attention scores, which only its own attention does",
        ),
        (
            not getattr(model_class, "_supports_attention_backend", False),
            "its class in transformers does not let attention be replaced",
        ),
    )
    return next((reason for is_so, reason in reasons if is_so), None)


def model_class_of(config: Any) -> Any | None:
    """transformers' class for the config, None where there is none."""
    return AutoModelForImageTextToText._model_mapping.get(type(config), None)


def _base_class_of(config: Any) -> Any | None:
    """transformers' class without a head."""
    return AutoModel._model_mapping.get(type(config), None)


def _rope_parameters(text: Any) -> list[dict[str, Any]]:
    """One for the decoder, or one for each type of layer."""
    found = getattr(text, "rope_parameters", None) or {}
    nested = [value for value in found.values() if isinstance(value, dict)]
    return nested or ([found] if found else [])
