"""The metadata's worked example, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from attention.protocol import AttentionMetadata, slot_mapping


def test_slots_are_those_of_the_worked_example() -> None:
    metadata = AttentionMetadata(
        cu_seqlens=np.array([0, 1, 4]), seq_lens=np.array([6, 3]), page_table=np.array([[7, 2], [5, 0]])
    )
    assert slot_mapping(metadata, 4).tolist() == [9, 20, 21, 22]


@pytest.mark.parametrize(("cu_seqlens", "seq_lens"), [([0, 2], [1]), ([0, 0], [3]), ([0, 1, 2], [4])])
def test_rows_that_do_not_fit_their_sequence_are_refused(cu_seqlens: list[int], seq_lens: list[int]) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        AttentionMetadata(
            cu_seqlens=np.array(cu_seqlens), seq_lens=np.array(seq_lens), page_table=np.zeros((1, 1), np.int64)
        )
