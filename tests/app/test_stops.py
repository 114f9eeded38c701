"""Stop strings: where the text is cut into pieces never changes what is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.stops import Checked, StopChecker


def run(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    checker = StopChecker(stops)
    shown = ""
    for piece in pieces:
        checked = checker.push(piece)
        shown += checked.text
        if checked.hit is not None:
            return shown, checked.hit
    return shown + checker.finish(), None


@pytest.mark.parametrize(
    ("stops", "text", "shown", "hit"),
    [
        (["DEFGHIJ"], "ABCDEFGHIJ", "ABC", "DEFGHIJ"),
        (["ha ha ha"], "ha ha no ha ha ha!", "ha ha no ", "ha ha ha"),
        (["x", "xy", "xyz"], "wxyz", "w", "x"),
        (["abcde", "c"], "abcde", "ab", "c"),
        (["bc", "abc"], "abc", "", "abc"),
        (["\n\n", "###"], "a\n###", "a\n", "###"),
        (["👋"], "hi 👋", "hi ", "👋"),
        (["start"], "start", "", "start"),
        (["aab"], "aaaab", "aa", "aab"),
        (["zz"], "z", "z", None),
        ([], "anything", "anything", None),
    ],
)
def test_whole_and_by_character_agree(stops: list[str], text: str, shown: str, hit: str | None) -> None:
    """The stop string complete first wins; of those ending together the longest; the text before it is exact."""
    assert run(stops, [text]) == (shown, hit)
    assert run(stops, list(text)) == (shown, hit)


@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=4),
    pieces=st.lists(st.text("abc", max_size=3), max_size=12),
)
def test_cuts_do_not_matter(stops: list[str], pieces: list[str]) -> None:
    """Streamed = whole, for any stop strings and any cuts."""
    assert run(stops, pieces) == run(stops, ["".join(pieces)])


def test_only_a_possible_start_is_held_back() -> None:
    """What cannot begin a stop string is shown at once; when the match breaks the held text appears."""
    checker = StopChecker(["DEF"])
    assert [checker.push(piece) for piece in ("ABCD", "E", "X")] == [Checked("ABC"), Checked(""), Checked("DEX")]


def test_held_text_appears_at_the_end() -> None:
    """An answer that ends inside what might have been a stop string is whole."""
    checker = StopChecker(["DEF"])
    assert checker.push("ABDE") == Checked("AB")
    assert checker.finish() == "DE"
