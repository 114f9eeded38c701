"""The packed forward of SigLIP-style towers: equal to transformers' own towers, whatever stands beside a picture."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import SiglipVisionConfig, SiglipVisionModel
from transformers.models.smolvlm.configuration_smolvlm import SmolVLMVisionConfig
from transformers.models.smolvlm.modeling_smolvlm import SmolVLMVisionEmbeddings, SmolVLMVisionTransformer

from attention.packed import plan_packed
from tests.checkpoints.base import scale_weights
from vision.towers.packed import PatchBatch, concatenate, patch_places
from vision.towers.siglip import hidden_states, reading_order, shuffle_pixels, stretched_order

PATCH = 8
SIZES = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 3}
TOLERANCE = 2e-5


def make_tower(kind: type[Any], config: Any) -> Any:
    tower = kind(config)
    scale_weights(tower, seed=0, head_gain=1.0)
    # Patches must not drown out their places.
    tower.embeddings.patch_embedding.weight.data /= (3 * PATCH * PATCH) ** 0.5
    return tower.eval()


@pytest.fixture(scope="module")
def siglip() -> Any:
    config = SiglipVisionConfig(image_size=44, patch_size=PATCH, vision_use_head=False, **SIZES)
    return make_tower(SiglipVisionModel, config)


@pytest.fixture(scope="module")
def smolvlm() -> Any:
    return make_tower(SmolVLMVisionTransformer, SmolVLMVisionConfig(image_size=48, patch_size=PATCH, **SIZES))


def noise(count: int, height: int, width: int, seed: int) -> torch.Tensor:
    """(count, 3, H, W) pixel values of height x width patches."""
    shape = (count, 3, height * PATCH, width * PATCH)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def as_batch(pictures: torch.Tensor, merge: int = 1) -> PatchBatch:
    count, _, height, width = pictures.shape
    h, w = height // PATCH, width // PATCH
    cut = pictures.view(count, 3, h // merge, merge, PATCH, w // merge, merge, PATCH)
    rows, cols = patch_places(h, w, merge)
    return PatchBatch(
        pixel_values=cut.permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(count * h * w, -1),
        rows=np.tile(rows, count), cols=np.tile(cols, count),
        heights=np.full(count * h * w, h), widths=np.full(count * h * w, w),
        cu_seqlens=np.arange(count + 1) * h * w,
    )  # fmt: skip


@torch.inference_mode()
def run(tower: Any, batch: PatchBatch, order: Any, after: tuple[int, ...]) -> torch.Tensor:
    return hidden_states(tower, batch.pixel_values, order(tower, batch), plan_packed(batch.cu_seqlens), after=after)


@pytest.mark.parametrize("after", [(3,), (2,), (0,), (1, 3)])
@torch.inference_mode()
def test_siglip_states_equal_the_oracle(siglip: Any, after: tuple[int, ...]) -> None:
    """Layer 3 of 3 is transformers' layer -1: what enters `post_layernorm`, not what leaves it."""
    pictures = noise(3, 5, 5, 0)
    states = siglip(pictures, output_hidden_states=True).hidden_states
    expected = torch.cat([states[number] for number in after], dim=-1).flatten(0, 1)
    got = run(siglip, as_batch(pictures), reading_order, after)
    torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("size", [(6, 6), (2, 6), (4, 2), (10, 10)])
@torch.inference_mode()
def test_smolvlm_pictures_of_any_size_equal_the_oracle(smolvlm: Any, size: tuple[int, int]) -> None:
    pictures = noise(2, *size, 0)
    expected = smolvlm(pictures).last_hidden_state
    got = smolvlm.post_layernorm(run(smolvlm, as_batch(pictures), stretched_order, (3,)))
    torch.testing.assert_close(got, expected.flatten(0, 1), atol=TOLERANCE, rtol=TOLERANCE)


@torch.inference_mode()
def test_pictures_packed_together_equal_each_alone(smolvlm: Any) -> None:
    """Of different sizes, so that any leak between segments shows."""
    batches = [as_batch(noise(*shape, seed)) for seed, shape in enumerate([(2, 6, 6), (1, 2, 4), (3, 4, 6)])]
    alone = [run(smolvlm, batch, stretched_order, (3,)) for batch in batches]
    together = run(smolvlm, concatenate(batches), stretched_order, (3,)).split([len(rows) for rows in alone])
    for got, expected in zip(together, alone, strict=True):
        torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=TOLERANCE)


def test_places_on_the_table_are_the_worked_example() -> None:
    tower = SmolVLMVisionTransformer(SmolVLMVisionConfig(image_size=4 * PATCH, patch_size=PATCH, **SIZES))
    assert stretched_order(tower, as_batch(noise(1, 2, 2, 0))).tolist() == [0, 2, 8, 10]
    assert reading_order(tower, as_batch(noise(1, 2, 2, 0))).tolist() == [0, 1, 4, 5]


@pytest.mark.parametrize("side", [*range(2, 33), 27, 32, 37])
def test_places_on_the_table_equal_the_oracle_bit_for_bit(side: int) -> None:
    """In float32 some shares fall below the edge of their bucket: those must, here, too."""
    config = SmolVLMVisionConfig(image_size=side, patch_size=1, hidden_size=8, num_attention_heads=1)
    embeddings = SmolVLMVisionEmbeddings(config)
    asked = []
    embeddings.position_embedding.register_forward_pre_hook(lambda _module, inputs: asked.append(inputs[0]))
    for height, width in ((side, side), (side, 1), (max(side // 2, 1), side)):
        embeddings(torch.zeros(1, 3, height, width), torch.ones(1, height, width, dtype=torch.bool))
        rows, cols = patch_places(height, width, 1)
        batch = PatchBatch(
            pixel_values=torch.zeros(height * width, 3), rows=rows, cols=cols, heights=np.full(len(rows), height),
            widths=np.full(len(rows), width), cu_seqlens=np.array([0, len(rows)]),
        )  # fmt: skip
        tower = type("Tower", (), {"embeddings": embeddings})
        assert torch.equal(stretched_order(tower, batch), asked.pop()[0])


def test_pixels_are_shuffled_as_the_connector_does() -> None:
    from transformers.models.smolvlm.modeling_smolvlm import SmolVLMConnector

    hidden = torch.randn(2, 36, 5)  # two pictures of 6 x 6 patches in reading order
    expected = SmolVLMConnector.pixel_shuffle(None, hidden, 3).flatten(0, 1)
    rows, cols = patch_places(6, 6, 3)
    grouped = hidden[:, rows * 6 + cols].flatten(0, 1)
    assert torch.equal(shuffle_pixels(grouped, 3), expected)
