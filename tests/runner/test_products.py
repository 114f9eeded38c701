"""Compiled products are the exact ones rounded once, and a row's is the same in any company and on any threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from runner.packed_linear import PackedLinear
from runner.products import (
    BLOCKS,
    COMPILED,
    MOST_ROWS,
    TILES,
    VECTOR_ROWS,
    Products,
    Then,
    find_block,
    load_library,
    packed_products,
    plain_products,
)  # fmt: skip

needs_library = pytest.mark.skipif(load_library() is None, reason="not compiled (no C compiler), or not for this CPU")


def lay_out(weight: torch.Tensor, block: int) -> torch.Tensor:
    """(N, K) as (N / block, K / 2, block, 2)."""
    width, size = weight.shape
    return weight.view(width // block, block, size // 2, 2).transpose(1, 2).contiguous()


def make_products(weight: torch.Tensor, block: int, *, by_tiles: bool) -> Products:
    library = load_library()
    assert library is not None
    if by_tiles and library.evs_support() != TILES:
        pytest.skip("this CPU has no tiles")
    memory = lay_out(weight, block)
    width, size = weight.shape
    return Products(
        library=library, weight=memory, find=memory.data_ptr, width=width, size=size, block=block, by_tiles=by_tiles
    )


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def assert_rounded_once(found: torch.Tensor, exact: torch.Tensor) -> None:
    """Half a step of bfloat16, and what float32 sums lose."""
    assert found.dtype == torch.bfloat16 and found.shape == exact.shape
    torch.testing.assert_close(found.double(), exact, rtol=1.01 * 2**-8, atol=1e-4)


@needs_library
@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("then", list(Then))
@pytest.mark.parametrize(("by_tiles", "rows"), [(False, 1), (False, 3), (False, 7), (True, 1), (True, 16), (True, 29)])
def test_few_rows(by_tiles: bool, rows: int, then: Then, block: int) -> None:
    weight, bias = draw(192, 96, seed=1) / 8, draw(192, seed=2)
    products = make_products(weight, block, by_tiles=by_tiles)
    x, other = draw(rows, 96, seed=3), draw(rows, 192, seed=4)
    for some in (bias, None):
        found = products.multiply(x, some, then, other if then in (Then.TIMES, Then.PLUS) else None)
        assert_rounded_once(found, expect(x, weight, some, then, other))


@needs_library
@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("then", list(Then))
@pytest.mark.parametrize("block", [32, 64])
@pytest.mark.parametrize(("rows", "size"), [(33, 96), (150, 4160), (777, 64)])
def test_many_rows(rows: int, size: int, block: int, then: Then) -> None:
    """More than fit into a panel, and a last square that overlaps the one before."""
    weight, bias = draw(320, size, seed=1) / size**0.5, draw(320, seed=2)
    products = make_products(weight, block, by_tiles=True)
    x, other = draw(rows, size, seed=3), draw(rows, 320, seed=4)
    kept = other.clone()
    for some in (bias, None):
        found = products.multiply(x, some, then, other if then in (Then.TIMES, Then.PLUS) else None)
        assert_rounded_once(found, expect(x, weight, some, then, other))
    assert torch.equal(other, kept)


def expect(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, then: Then, other: torch.Tensor
) -> torch.Tensor:
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    match then:
        case Then.SILU:
            return F.silu(exact)
        case Then.TIMES:
            return exact * other.double()
        case Then.PLUS:
            return exact + other.double()
        case _:
            return exact


@needs_library
@pytest.mark.parametrize("rows", range(1, VECTOR_ROWS + 1))
@pytest.mark.parametrize(("width", "size"), [(5, 96), (130, 100), (64, 7)])
def test_a_weight_as_it_lies(width: int, size: int, rows: int) -> None:
    """Of any size, and found again where its data have moved."""
    weight, bias = nn.Parameter(draw(width, size, seed=1) / 8, requires_grad=False), draw(width, seed=2)
    products = plain_products(weight)
    assert products is not None and products.take(rows) and not products.take(VECTOR_ROWS + 1)
    x = draw(rows, size + 3, seed=3)[:, 3:]
    for some in (bias, None):
        assert_rounded_once(products.multiply(x, some), expect(x, weight, some, Then.NOTHING, x))
    weight.data = weight.data * 2
    assert_rounded_once(products.multiply(x, None), expect(x, weight, None, Then.NOTHING, x))


@needs_library
@pytest.mark.parametrize("by_tiles", [False, True])
def test_a_row_is_the_same_in_any_company_and_on_any_threads(by_tiles: bool) -> None:
    """Alone, among few and among many, on one thread and on four."""
    products = make_products(draw(352, 96, seed=1), 32, by_tiles=by_tiles)
    x, before = draw(100 if by_tiles else VECTOR_ROWS, 96, seed=2), torch.get_num_threads()
    together = products.multiply(x, None)
    try:
        for threads in (1, 4):
            torch.set_num_threads(threads)
            assert torch.equal(products.multiply(x, None), together)
            for few in (1, 3, 17):
                assert torch.equal(torch.cat([products.multiply(part, None) for part in x.split(few)]), together)
    finally:
        torch.set_num_threads(before)


@needs_library
def test_what_torch_packs_is_read_where_we_know_its_form() -> None:
    """And a packed layer computes with it, whatever its rows' shape."""
    linear = nn.Linear(96, 160, dtype=torch.bfloat16)
    packed = PackedLinear(linear)
    if packed.products is None:
        pytest.skip("torch packs weights otherwise on this CPU")
    most = MOST_ROWS if packed.products.by_tiles else VECTOR_ROWS
    assert packed.products.take(most) and not packed.products.take(most + 1) and not packed.products.take(0)
    for shape in ((2, 1), (1, 2, 2), (3, 50), (most + 1,)):
        x, other = draw(*shape, 96, seed=5), draw(*shape, 160, seed=6)
        exact = F.linear(x.double(), linear.weight.double(), linear.bias.double())
        for found, wanted in (
            (packed(x), exact), (packed.silu(x), F.silu(exact)), (packed.plus(x, other), exact + other.double()),
            (packed.times(x, other.mT.contiguous().mT), exact * other.double()),
        ):  # fmt: skip
            torch.testing.assert_close(found.double(), wanted, rtol=2**-7, atol=2**-7)


def test_the_form_of_a_packed_weight() -> None:
    """Found in memory; rows of 16 bring both pairs of their numbers apart, and what lies otherwise is not ours."""
    weight = torch.arange(32 * 4).view(32, 4).bfloat16()
    memory = lay_out(weight, 16).flatten()
    assert memory[:6].tolist() == [0, 1, 4, 5, 8, 9] and memory[32:36].tolist() == [2, 3, 6, 7]
    assert find_block(memory, weight) == 16
    assert find_block(lay_out(weight, 32).flatten(), weight) == 32
    assert find_block(weight.t().contiguous().flatten(), weight) is None
    assert find_block(weight.flatten(), weight) is None
    weight[:16] = weight[16:] = 0  # nothing to tell the forms apart by
    assert find_block(lay_out(weight, 32).flatten(), weight) is None


@needs_library
def test_odd_sizes_are_left_to_torch() -> None:
    packed = torch.ops.mkldnn._reorder_linear_weight(draw(80, 48), 1024)
    assert packed_products(packed, draw(80, 48)) is None


@needs_library
def test_numbers_that_are_none() -> None:
    """NaN stays, and infinite sums are infinite."""
    weight = draw(32, 32, seed=1).abs()
    products = make_products(weight, 32, by_tiles=False)
    x = torch.zeros(2, 32).bfloat16()
    x[0, 0], x[1, 1] = float("nan"), float("inf")
    found = products.multiply(x, None)
    assert found[0].isnan().all() and found[1].isinf().all()
    quiet = products.multiply(torch.full((1, 32), -3e4).bfloat16(), None, Then.SILU)
    assert torch.equal(quiet, torch.zeros_like(quiet))


@pytest.mark.skipif(not os.environ.get("EVS_NEEDS_PRODUCTS"), reason="EVS_NEEDS_PRODUCTS=1 asks for a C compiler")
def test_it_is_compiled_where_there_is_a_compiler() -> None:
    """`.ci/run` installs one and asks."""
    assert find_spec(COMPILED) is not None
