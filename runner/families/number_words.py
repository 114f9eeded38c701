"""Whole numbers in English words, as prompts spell them. Knows nothing of prompts."""

from __future__ import annotations

ONES = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
TENS = ["zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def number_words(number: int) -> str:
    """0 to 999,999, with British "and" and with commas after thousands.

    Worked example: 64 is "sixty-four", 105 is "one hundred and five", 1200 is "one thousand, two hundred", 2005 is "two
    thousand and five".
    """
    if not 0 <= number < 1_000_000:
        raise ValueError(f"only numbers from 0 to 999999 are spelled out, got {number}")
    if number < 20:
        return ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return TENS[tens] + (f"-{ONES[ones]}" if ones else "")
    size, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    head, rest = divmod(number, size)
    spelled = f"{number_words(head)} {name}"
    if not rest:
        return spelled
    return f"{spelled}{', ' if rest >= 100 else ' and '}{number_words(rest)}"
