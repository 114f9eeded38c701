"""Keys of a sequence's full pages: two pages have one key exactly when their keys and values are the same. Owns what a
key covers; knows no pool and no queue.

A row's keys and values depend on all rows before it, and inside a range whose rows see each other on the rest of that
range, too. So a page's key is a digest of the key of the page before it and of what its own rows are made from: token
ids, positions, and for a cell which row of which encoding it is (`MediaItem.encoding_key` covers pixels, geometry, kept
cells and encoder mode). A page that a range reaches out of covers the rest of that range. The cache lives and dies with
one model in one process, which keys therefore need not name. As in vLLM's automatic prefix caching, keys are a chain of
sha256.
"""

from __future__ import annotations

import hashlib

import numpy as np

from runner.items import framed_digest
from runner.ranges import cut_before
from runner.sequence import Sequence


def extend_page_keys(sequence: Sequence, num_rows: int, page_size: int) -> None:
    """Make the keys of all full pages in rows [0, num_rows) that are not made yet, in `sequence.page_keys`.

    Worked example, page_size 4: 11 rows have two keys; at 12 there is a third.
    """
    keys = sequence.page_keys
    for page in range(len(keys), num_rows // page_size):
        start, stop = page * page_size, (page + 1) * page_size
        parent = keys[-1] if keys else b""
        keys.append(hashlib.sha256(parent + _rows_digest(sequence, start, stop)).digest())


def cacheable_rows(sequence: Sequence, num_pages: int, page_size: int) -> int:
    """Of `num_pages` pages that were found, the rows that may be used: whole pages, never part of a range, and not the
    last row, for something is wanted of it.

    Worked example, page_size 4, 12 rows: of 3 pages 8 rows, for row 11 is the last. With a range (6, 9), 4.
    """
    rows = min(num_pages * page_size, len(sequence) - 1)
    while True:
        rows -= rows % page_size
        cut = cut_before(sequence.prompt.ranges, rows)
        if cut == rows:
            return rows
        rows = cut


def _rows_digest(sequence: Sequence, start: int, stop: int) -> bytes:
    ranges = [found for found in sequence.prompt.ranges if found[0] < stop and start < found[1]]
    end = max([stop, *(found[1] for found in ranges)])
    parts = (
        sequence.token_ids(start, end).tobytes(),
        np.ascontiguousarray(sequence.positions(start, end)).tobytes(),
        repr([(first - start, last - start) for first, last in ranges]).encode(),
        *_cell_parts(sequence, start, end),
    )
    return framed_digest(parts).encode()


def _cell_parts(sequence: Sequence, start: int, stop: int) -> tuple[bytes, ...]:
    """Which row of which encoding each row is; items count from the first that the rows name."""
    rank = sequence.prompt.rank[start:stop]
    is_cell = rank >= 0
    if not is_cell.any():
        return ()
    owners, which = np.unique(sequence.prompt.item[start:stop][is_cell], return_inverse=True)
    keys = tuple(sequence.items[int(owner)].encoding_key.encode() for owner in owners)
    return (rank.tobytes(), which.astype(np.int64).tobytes(), *keys)
