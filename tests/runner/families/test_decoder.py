"""The decoder's pieces against float64, and the whole of it, packed in bfloat16, against transformers in float32."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import Qwen2Config, Qwen2Model
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from runner import linear_forms
from runner.errors import EngineStartError
from runner.families.decoder import Decoder, rotate
from runner.families.fused import FEW_ROWS, MANY_ROWS, GatedMlp, fuse_blocks, rms_norm, turn_patches
from runner.linear_forms import FORMS, Form, Forms, probe_forms
from tests.checkpoints.qwen2_5_vl import make_qwen2_5_vl, make_qwen2_vl
from tests.harness import local_engine
from tests.oracle import answer, as_message, noise_clip, worst_error
from vision.towers.rotary import phases_at
from vision.towers.rotary import rotate as rotate_patches


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "shape", [(1, 24), (FEW_ROWS, 24), (FEW_ROWS + 1, 24), (MANY_ROWS, 24), (100, 24), (5, 3, 8), (100, 3, 8)]
)
def test_rms_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (torch.randn(shape) * torch.logspace(-2, 2, shape[0]).view(-1, *[1] * (len(shape) - 1))).to(dtype)
    weight = torch.rand(shape[-1]).to(dtype)
    exact = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-6) * weight.double()
    rounding = 1e-6 if dtype == torch.float32 else 2**-7
    before = x.clone()
    torch.testing.assert_close(rms_norm(x, weight, 1e-6).double(), exact, rtol=rounding, atol=rounding * 1e-2)
    assert torch.equal(x, before)


def test_rotation_is_transformers() -> None:
    torch.manual_seed(0)
    x, angles = torch.randn(7, 3, 8), torch.randn(7, 4).repeat(1, 2)
    cos, sin = angles.cos(), angles.sin()
    expected, _ = apply_rotary_pos_emb(x.transpose(0, 1)[None], x.transpose(0, 1)[None], cos[None], sin[None])
    signed = torch.cat((-sin[:, :4], sin[:, 4:]), dim=-1)
    torch.testing.assert_close(rotate(x, (cos[:, None], signed[:, None])), expected[0].transpose(0, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_patches_turn_as_their_tower_turns_them(dtype: torch.dtype) -> None:
    """And values beside them stay as they are."""
    torch.manual_seed(0)
    qkv, places = torch.randn(40, 3, 4, 64).to(dtype), torch.randint(0, 30, (40, 2))
    phases = phases_at(torch.logspace(0, -3, 16), places, qkv)
    values, expected = qkv[:, 2].clone(), rotate_patches(qkv[:, :2].double(), tuple(p.double() for p in phases))
    turned = turn_patches(qkv[:, :2], phases)
    rounding = 1e-6 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(turned.double(), expected, rtol=rounding, atol=rounding)
    assert torch.equal(qkv[:, 2], values)


def test_projections_become_one_and_are_held_once() -> None:
    text = Qwen2Model(
        Qwen2Config(
            vocab_size=8, hidden_size=16, intermediate_size=8, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2,
        )
    )  # fmt: skip
    attn = text.layers[1].self_attn
    expected = torch.cat([attn.q_proj.weight, attn.k_proj.weight, attn.v_proj.weight]).detach()
    before = sum(p.numel() for p in text.parameters())
    Decoder(text)
    assert torch.equal(attn.qkv_proj.weight, expected)
    assert not hasattr(attn, "q_proj")
    assert sum(p.numel() for p in text.parameters()) == before


def test_an_unknown_activation_is_refused() -> None:
    layer = SimpleNamespace(mlp=SimpleNamespace(act_fn=nn.GELU()))
    with pytest.raises(EngineStartError, match="silu"):
        Decoder(SimpleNamespace(layers=[layer]))


@torch.inference_mode()
def test_a_towers_blocks_give_the_same() -> None:
    """Norms and gated MLPs are swapped and compute what transformers' do; blocks of other kinds are left alone."""
    for make, swapped in ((make_qwen2_5_vl, True), (make_qwen2_vl, False)):
        tower = make()[0].model.visual
        block, x = tower.blocks[0], torch.randn(70, 48)
        expected = block.norm1(x), block.mlp(x)
        fuse_blocks(tower)
        assert isinstance(block.mlp, GatedMlp) is swapped
        torch.testing.assert_close((block.norm1(x), block.mlp(x)), expected)


@pytest.mark.parametrize("form", list(probe_forms()))
@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl", "smolvlm"])
def test_arranged_bfloat16_stays_near_float32(
    name: str, form: Form, checkpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random weights make rounding matter more than trained ones do; a wrong weight would be off by the spread."""
    monkeypatch.setattr(linear_forms, "best_forms", lambda: Forms(layers=form, head=form))
    folder: Path = checkpoint(name)
    turn = [noise_clip(1, num_frames=6, size=(90, 130)), "What moves?"]
    with local_engine(folder, dtype="bfloat16", max_num_batched_tokens=40) as local:
        modules: list[nn.Module] = list(local.assembled.admission.family._model.modules())
        assert any(isinstance(module, FORMS[form]) for module in modules)
        assert not any(isinstance(module, nn.Linear) for module in modules)
        ours = local.answer([as_message(turn)], sampling=local.everything(1))
    assert worst_error(ours.logprobs, answer(folder, turn, 1).logits) < 0.25
