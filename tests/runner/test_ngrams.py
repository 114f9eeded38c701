"""The last place where most of the newest tokens stood, found without reading everything again."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from runner.ngrams import HIDDEN, LONGEST, SHORTEST, Ngrams


def ngrams(prompt: list[int], output: list[int] | None = None) -> Ngrams:
    found = Ngrams(np.array(prompt, dtype=np.int64))
    found.extend(output or [])
    return found


def guess_naively(tokens: list[int], count: int) -> tuple[int, ...]:
    """By its definition: the longest end that stood before, its last place, and what followed, again and again."""
    for length in range(min(LONGEST, len(tokens) - 1), SHORTEST - 1, -1):
        end = tokens[-length:]
        places = [at for at in range(len(tokens) - length) if tokens[at : at + length] == end]
        if HIDDEN not in end and places:
            grown = list(tokens)
            after = places[-1] + length
            for place in range(after, after + count):
                grown.append(grown[place])
            guess = grown[len(tokens) :]
            return tuple(guess[: guess.index(HIDDEN)] if HIDDEN in guess else guess)
    return ()


def test_worked_examples() -> None:
    assert ngrams([5, 6, 7, 8], [5, 6]).guess(3) == (7, 8, 5)
    assert ngrams([], [9, 9, 9]).guess(3) == (9, 9, 9)
    assert ngrams([1, 2, 3, 4]).guess(3) == ngrams([]).guess(3) == ngrams([1], [1]).guess(3) == ()


def test_the_longest_match_wins_then_the_last() -> None:
    assert ngrams([1, 2, 3, 7, 5, 2, 3, 8, 9, 2, 3, 6], [1, 2, 3]).guess(1) == (7,)
    assert ngrams([4, 2, 3, 7, 5, 2, 3, 8], [9, 2, 3]).guess(1) == (8,)


def test_rows_of_cells_are_neither_matched_nor_guessed() -> None:
    assert ngrams([1, 2, 3, HIDDEN, HIDDEN], [1, 2]).guess(4) == (3,)
    assert ngrams([HIDDEN] * 9).guess(2) == ()
    assert ngrams([1, HIDDEN, 3, 4, 1, HIDDEN, 3]).guess(2) == ()


@given(st.lists(st.integers(HIDDEN, 3), max_size=40), st.lists(st.integers(0, 3), max_size=140), st.integers(1, 6))
def test_it_finds_what_a_search_through_everything_finds(prompt: list[int], output: list[int], count: int) -> None:
    """However the answer arrives, one token at a time or several."""
    at_once, one_by_one = ngrams(prompt, output), ngrams(prompt)
    for token in output:
        one_by_one.extend([token])
    assert at_once.guess(count) == one_by_one.guess(count) == guess_naively(prompt + output, count)
