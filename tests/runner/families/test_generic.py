"""The generic adapter: three families that have no adapter of their own answer as transformers does, and what cannot be
served is refused with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    AutoConfig,
    Blip2Config,
    CLIPImageProcessor,
    Florence2Config,
    Glm4vConfig,
    Lfm2VlConfig,
    LlavaConfig,
    MllamaConfig,
)

from runner.doctor_model import describe_model
from runner.errors import EngineStartError
from runner.families.generic import PictureText, join_patches
from runner.families.generic_probe import generic_adapter
from runner.families.generic_traits import refusal_of
from runner.requests import EvsOptions
from tests.checkpoints.strangers import STRANGERS
from tests.harness import LocalEngine, local_engine, rebuilt
from tests.oracle import Part, as_message, load_oracle, noise_clip, noise_picture, worst_error
from tests.runner.families.looking import look_at
from tests.runner.test_history import assert_same
from vision.aspect_tiles import ShortestEdgeCrop

TOLERANCE = 1e-4
MAX_TOKENS = 4
CLIP, PICTURE, WIDE = noise_clip(1, num_frames=5, size=(90, 130)), noise_picture(2, size=(100, 77)), (64, 190)


@pytest.fixture(scope="module", params=sorted(STRANGERS))
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp(request.param)
    STRANGERS[request.param](folder)
    with local_engine(folder) as local:
        yield local, folder


@torch.inference_mode()
def oracle(folder: Path, turn: list[Part], tokens: int) -> tuple[list[int], list[int], torch.Tensor]:
    """A clip is its frames to the processor; the model runs as it is, without a cache."""
    model, processor = load_oracle(folder)
    content: list[dict[str, str]] = []
    pictures = []
    for part in turn:
        if isinstance(part, str):
            content.append({"type": "text", "text": part})
            continue
        shown = [part] if isinstance(part, np.ndarray) else list(part.frames)
        content += [{"type": "image"}] * len(shown)
        pictures += [Image.fromarray(picture) for picture in shown]
    chat = [{"role": "user", "content": content}]
    text = processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    if pictures:
        inputs = dict(processor(text=[text], images=pictures, return_tensors="pt"))
    else:  # not every processor takes text alone
        inputs = dict(processor.tokenizer([text], return_tensors="pt"))
    ids, given = inputs.pop("input_ids"), {k: v for k, v in inputs.items() if k.startswith("pixel_values")}
    prompt, drawn, steps = ids[0].tolist(), [], []
    for _ in range(tokens):
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **given).logits[0, -1]
        steps.append(logits.clone())
        logits[model.config.image_token_id] = -torch.inf
        drawn.append(int(logits.argmax()))
        ids = torch.cat((ids, torch.tensor([[drawn[-1]]])), dim=1)
    return prompt, drawn, torch.stack(steps)


@pytest.mark.parametrize(
    "turn",
    [["only words"], [PICTURE, "what?"], ["see", noise_picture(3, size=WIDE), "or", CLIP, "?"]],
    ids=["text", "image", "image_then_clip"],
)
def test_tokens_and_logits_equal_the_oracle(engine: tuple[LocalEngine, Path], turn: list[Part]) -> None:
    local, folder = engine
    if local.assembled.loaded.family.name == "got_ocr2" and len(turn) > 3:
        turn = [PICTURE, "or", noise_clip(1, num_frames=2, size=(90, 130)), "?"]  # 256 cells a picture
    prompt, tokens, logits = oracle(folder, turn, MAX_TOKENS)
    chat = [as_message(turn)]
    assert local.lay_out(chat).prompt.token_ids.tolist() == prompt
    ours = local.answer(chat, sampling=local.everything(MAX_TOKENS))
    assert worst_error(ours.logprobs, logits) < TOLERANCE
    assert ours.token_ids == tokens


def test_chunks_batches_and_pruning_change_nothing(engine: tuple[LocalEngine, Path]) -> None:
    """Laws 2 and 4."""
    local, folder = engine
    chat = [as_message([noise_clip(4, num_frames=3, size=(60, 60)), "?"])]
    for evs in (EvsOptions(method="none"), EvsOptions(method="uniform", rate=0.5)):
        reference = local.answer(chat, sampling=local.everything(MAX_TOKENS), evs=evs)
        small = rebuilt(local, folder, max_num_seqs=3, max_num_batched_tokens=29)
        names = [small.submit(chat, sampling=small.everything(MAX_TOKENS), evs=evs) for _ in range(2)]
        small.run()
        for name in names:
            assert_same(small.answers[name, 0], reference)
    assert reference.usage.evs is not None
    assert reference.usage.evs.kept < reference.usage.evs.cells


# ------------------------------------------------------------------------------------------------------------- refusals

CONVOLUTIONS = {"model_type": "lfm2", "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "mllama": (MllamaConfig, "cross-attention"),
    "glm4v": (Glm4vConfig, "M-RoPE"),
    "lfm2_vl": (partial(Lfm2VlConfig, text_config=CONVOLUTIONS), "layers of type conv"),
    "blip-2": (partial(Blip2Config, image_token_index=5), "no rotary positions"),
    "florence2": (Florence2Config, "encoder-decoder"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_served_is_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    config, reason = REFUSED[name]
    config().save_pretrained(tmp_path)
    assert reason in (refusal_of(AutoConfig.from_pretrained(tmp_path)) or "")
    with pytest.raises(EngineStartError, match=f"{name} has no adapter.*{reason}"), local_engine(tmp_path):
        pass
    facts = describe_model(str(tmp_path))
    assert (facts["adapter"], reason in facts["why"]) == ("none", True)


def test_doctor_says_which_adapter_and_why(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    assert describe_model(str(checkpoint("gemma3"))) == {
        "model": str(checkpoint("gemma3")), "model type": "gemma3", "adapter": "gemma3",
        "why": "gemma3 has an adapter of its own", "text decoder": "gemma3_text",
        "layers": "3 (2 sliding_attention of 14 rows, 1 full_attention)",
    }  # fmt: skip
    LlavaConfig().save_pretrained(tmp_path)
    facts = describe_model(str(tmp_path))
    assert facts["adapter"] == "generic" and "tried out when it is loaded" in facts["why"]
    assert "no config.json" in describe_model(str(tmp_path.parent))["why"]


def test_a_model_that_does_otherwise_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial notices pixels, words and logits that are not the adapter's."""
    STRANGERS["llava"](tmp_path)
    with local_engine(tmp_path) as local:
        family = local.assembled.loaded.family
        model, processor = family._model, family._processor
    generic_adapter(model, processor)
    with monkeypatch.context() as patch:
        patch.setattr(
            CLIPImageProcessor, "center_crop", lambda _self, image, size, **_: image[..., : size.height, : size.width]
        )
        with pytest.raises(EngineStartError, match="prepares pictures in a way of its own"):
            generic_adapter(model, processor)
    with monkeypatch.context() as patch:
        patch.setattr(type(processor), "replace_image_token", lambda *_: "<image>" * 35)
        with pytest.raises(EngineStartError, match="no rows and columns"):
            generic_adapter(model, processor)
    with monkeypatch.context() as patch:
        real = type(model).forward
        patch.setattr(type(model), "forward", lambda self, **k: _scaled(real(self, **k)))
        with pytest.raises(EngineStartError, match="computes logits in a way of its own"):
            generic_adapter(model, processor)


def _crop_corner(_self: Any, image: torch.Tensor, size: Any, **_: Any) -> torch.Tensor:
    return image[..., : size.height, : size.width]


def _scaled(out: Any) -> Any:
    out.logits = out.logits * 0.9
    return out


def test_worked_examples() -> None:
    assert PictureText.of("<s>TTT|TTT<e>", "T") == PictureText(text="<s>T|T<e>", runs=(3, 3))
    crop = ShortestEdgeCrop(edge=40, side=40)
    picture = torch.arange(190, dtype=torch.uint8).expand(3, 64, 190).contiguous()
    assert crop.cut(picture, (64, 190), "bilinear").shape == (1, 3, 40, 40)


@pytest.mark.parametrize("size", [(100, 77), (64, 190), (48, 48), (33, 33), (5, 300)])
def test_cropped_pictures_equal_the_processor(size: tuple[int, int]) -> None:
    processor = CLIPImageProcessor(
        size={"shortest_edge": 48}, crop_size={"height": 40, "width": 40}, do_normalize=False, do_rescale=False
    )
    picture = torch.randint(0, 256, (3, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    expected = processor(picture, return_tensors="pt")["pixel_values"].to(torch.uint8)
    assert torch.equal(ShortestEdgeCrop(edge=48, side=40).cut(picture, size, "bicubic"), expected)


def test_patches_join_to_the_pictures_they_were_cut_from(engine: tuple[LocalEngine, Path]) -> None:
    local, _ = engine
    family = local.assembled.loaded.family
    item = look_at(family, noise_clip(5, num_frames=2, size=(60, 80)))
    pictures = join_patches(family.patch_batch(item, 0, 2), item.grid.patch_grid[1])
    images = family._processor.image_processor
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in (images.image_mean, images.image_std))
    expected = (torch.from_numpy(item.grid.pixels).float() / 255 - mean) / std
    torch.testing.assert_close(pictures, expected, rtol=1e-4, atol=1e-4)
