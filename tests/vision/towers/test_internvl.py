"""The packed InternVL tower equals transformers' own, and pictures do not see each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attention.packed import plan_packed
from tests.checkpoints.internvl import make_internvl
from vision.towers.arranged import encode_arranged
from vision.towers.internvl import InternVLTower, with_leaders
from vision.towers.packed import PatchBatch, patch_places


def test_leaders_are_the_worked_example() -> None:
    segments, places = with_leaders(np.array([0, 2, 5]))
    assert segments.tolist() == [0, 3, 7]
    assert places.tolist() == [1, 2, 4, 5, 6]


@torch.inference_mode()
@pytest.mark.parametrize("qk_norm", [False, True])
def test_packed_pictures_equal_the_model(qk_norm: bool) -> None:
    model, _ = make_internvl(qk_norm=qk_norm)
    pictures = torch.randn(3, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    rows, cols = patch_places(6, 6, 2)
    cut = pictures.reshape(3, 3, 6, 8, 6, 8).permute(0, 2, 4, 1, 3, 5)  # (n, 6, 6, 3, 8, 8)
    batch = PatchBatch(
        pixel_values=cut[:, rows, cols].reshape(3 * 36, -1),
        rows=np.tile(rows, 3), cols=np.tile(cols, 3), heights=np.full(108, 6), widths=np.full(108, 6),
        cu_seqlens=np.arange(4) * 36,
    )  # fmt: skip
    expected = model.model.vision_tower(pictures).last_hidden_state[:, 1:]
    expected = expected.reshape(3, 6, 6, -1)[:, rows, cols].flatten(0, 1)
    tower = InternVLTower(model.model.vision_tower, lambda hidden: hidden)
    got = encode_arranged(tower, batch, lambda segments: plan_packed(segments.cu_seqlens))
    torch.testing.assert_close(got.embeddings, expected, rtol=1e-4, atol=1e-4)
