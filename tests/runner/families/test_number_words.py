"""Numbers are spelled as transformers' processor has them spelled, by num2words."""

from __future__ import annotations

import pytest
from num2words import num2words

from runner.families.number_words import number_words


def test_worked_examples() -> None:
    assert [number_words(n) for n in (0, 13, 64, 105, 1200, 2005)] == [
        "zero", "thirteen", "sixty-four", "one hundred and five", "one thousand, two hundred", "two thousand and five",
    ]  # fmt: skip


def test_every_number_of_frames_equals_num2words() -> None:
    numbers = [*range(2200), *range(2200, 1_000_000, 997), 999_999]
    assert [number_words(n) for n in numbers] == [num2words(n) for n in numbers]


@pytest.mark.parametrize("number", [-1, 1_000_000])
def test_other_numbers_are_refused(number: int) -> None:
    with pytest.raises(ValueError, match=str(number)):
        number_words(number)
