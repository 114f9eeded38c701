"""Law 6 for pages of keys and values: whatever changes a row changes its page's key, and every later one's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attention.protocol import Range
from runner.items import MediaItem
from runner.page_keys import cacheable_rows, extend_page_keys
from runner.pooling import Pooled
from runner.prompt import Prompt
from runner.sequence import Sequence
from tests.runner.test_prompt import make_item

PAGE = 4
ITEMS = (make_item(np.ones((2, 3), dtype=bool)),)
CELLS = range(2, 8)  # rows of the item's six cells


def make_prompt(length: int = 12, ranges: tuple[Range, ...] = ()) -> Prompt:
    rank = np.full(length, -1, dtype=np.int64)
    rank[list(CELLS)] = np.arange(len(CELLS))
    return Prompt(
        token_ids=np.arange(100, 100 + length), positions=np.arange(2 * length).reshape(2, length),
        item=np.where(rank >= 0, 0, -1).astype(np.int32), rank=rank, next_position=length, ranges=ranges,
    )  # fmt: skip


def keys_of(prompt: Prompt, items: tuple[MediaItem, ...] = ITEMS, output: tuple[int, ...] = ()) -> list[bytes]:
    sequence = Sequence(request_id="r", index=0, arrival=0, prompt=prompt, items=items, goal=Pooled())
    sequence.output.extend(output)
    extend_page_keys(sequence, len(sequence), PAGE)
    return sequence.page_keys


def num_shared(a: list[bytes], b: list[bytes]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.mark.parametrize("name", ["token_ids", "positions", "rank"])
@pytest.mark.parametrize("row", [0, 3, 5, 6, 11])
def test_every_row_counts(name: str, row: int) -> None:
    """One number of one row, and its page and all behind it are others; those before are not."""
    prompt = make_prompt()
    changed = getattr(prompt, name).copy()
    changed[..., row] += 1 if name != "rank" or row in CELLS else 0
    if name == "rank" and row not in CELLS:
        assert keys_of(replace(prompt, rank=changed)) == keys_of(prompt)
        return
    if name == "rank" and row == 3:
        changed[row] = 5
    assert num_shared(keys_of(replace(prompt, **{name: changed})), keys_of(prompt)) == row // PAGE


def test_what_a_cell_shows_counts() -> None:
    """The same rows over another encoding: other kept cells, another mode, another picture."""
    other = make_item(np.array([[True, True, True], [True, True, True], [True, False, False]]))
    assert other.encoding_key != ITEMS[0].encoding_key
    assert num_shared(keys_of(make_prompt(), (other,)), keys_of(make_prompt())) == 0


def test_which_of_two_items_a_row_shows_counts() -> None:
    """The same clip twice is the same rows; two clips in the other order are not."""
    other = make_item(np.array([[True, True, True], [True, True, True], [True, False, False]]))
    prompt = make_prompt()
    item = prompt.item.copy()
    item[5:8] = 1
    both = replace(prompt, item=item)
    assert num_shared(keys_of(both, (ITEMS[0], other)), keys_of(both, (other, ITEMS[0]))) == 0
    assert num_shared(keys_of(both, (ITEMS[0], other)), keys_of(prompt)) == 1


def test_rows_ahead_count_where_a_range_sees_them() -> None:
    """Rows 2 to 9 see each other: a change in row 9 changes what lies in the first page; one behind them does not."""
    for row, shared in ((9, 0), (11, 2)):
        prompt = make_prompt(16, ranges=((2, 10),))
        tokens = prompt.token_ids.copy()
        tokens[row] += 1
        assert num_shared(keys_of(replace(prompt, token_ids=tokens)), keys_of(prompt)) == shared
    assert num_shared(keys_of(make_prompt(16, ranges=((2, 10),))), keys_of(make_prompt(16))) == 0
    assert num_shared(keys_of(make_prompt(16, ranges=((2, 10),))), keys_of(make_prompt(16, ranges=((3, 10),)))) == 0


def test_output_is_rows_like_any_other() -> None:
    """A prompt of ten rows and the two that were drawn, and a prompt of these twelve."""
    prompt = make_prompt(10)
    positions = np.concatenate((prompt.positions, np.broadcast_to([10, 11], (2, 2))), axis=1)
    whole = replace(
        make_prompt(12), token_ids=np.concatenate((prompt.token_ids, [7, 8])), positions=positions, next_position=12
    )
    assert keys_of(prompt, output=(7, 8)) == keys_of(whole)
    assert len(keys_of(prompt)) == 2 and len(keys_of(prompt, output=(7, 8))) == 3


def test_rows_that_may_be_used_are_the_worked_example() -> None:
    for ranges, rows in (((), 8), (((6, 9),), 4)):
        sequence = Sequence(
            request_id="r", index=0, arrival=0, prompt=make_prompt(12, ranges=ranges), items=ITEMS, goal=Pooled()
        )
        assert cacheable_rows(sequence, 3, PAGE) == rows
        assert cacheable_rows(sequence, 0, PAGE) == 0
