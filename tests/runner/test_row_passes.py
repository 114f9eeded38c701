"""Compiled norms and turns are torch's, rounded where torch rounds, and touch nothing but the rows they are given."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from runner.products import load_library
from runner.row_passes import norm_rows, turn_rows

needs_library = pytest.mark.skipif(load_library() is None, reason="not compiled (no C compiler), or not for this CPU")
COUNTS = (1, 5, 300)  # of rows; the last on several threads


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    count = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(count)


@needs_library
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("shape", [(896,), (48,), (6, 64)])
def test_norm_is_exact_but_for_two_roundings(count: int, shape: tuple[int, ...]) -> None:
    """Also of heads that stand among others, which are not read."""
    torch.manual_seed(0)
    x = torch.full((count, shape[0] + 3 * (len(shape) - 1), *shape[1:]), torch.nan, dtype=torch.bfloat16)[:, : shape[0]]
    x.copy_(torch.randn(x.shape) * torch.logspace(-2, 2, count).view(-1, *[1] * len(shape)))
    weight = (1 + torch.rand(shape[-1])).bfloat16()
    out = norm_rows(x, weight, 1e-6)
    assert out is not None and out.is_contiguous()
    normed = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-6)
    torch.testing.assert_close(out.double(), normed * weight.double(), rtol=2**-7, atol=0)
    alone = norm_rows(x[count // 2 :][:1], weight, 1e-6)
    assert alone is not None and torch.equal(alone[0], out[count // 2])


@needs_library
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("size", [32, 64, 96])
def test_turns_are_exact_but_for_two_roundings(count: int, size: int) -> None:
    """In place, beside heads that stay as they are."""
    torch.manual_seed(0)
    whole, angles = torch.randn(count, 7, size).bfloat16(), torch.randn(count, size)
    cos, sin = angles.cos().bfloat16()[:, None], angles.sin().bfloat16()[:, None]  # (S, 1, K), the sines signed
    before = whole.clone()
    assert turn_rows(whole[:, :5], cos, sin)
    x = before[:, :5].double()
    turned = x.roll(size // 2, -1).mul(sin.double())
    expected = turned + x * cos.double()
    bound = (turned.abs() + expected.abs()) * 2**-8
    assert ((whole[:, :5].double() - expected).abs() <= bound).all()
    assert torch.equal(whole[:, 5:], before[:, 5:])


@needs_library
def test_what_is_not_taken_stays_as_it_is() -> None:
    """Other numbers, sizes that fill no register, gaps inside a row."""
    phases = torch.ones(4, 1, 64).bfloat16()
    for x in (torch.ones(4, 2, 64), torch.ones(4, 2, 40).bfloat16(), torch.ones(4, 64, 2).bfloat16().transpose(1, 2)):
        assert norm_rows(x, torch.ones(x.shape[-1]).to(x.dtype), 1e-6) is None
        assert not turn_rows(x, phases, phases) and (x == 1).all()
    assert not turn_rows(torch.ones(4, 2, 64).bfloat16(), phases, phases.float())
