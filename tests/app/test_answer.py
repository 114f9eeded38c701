"""One answer: text, stop strings, log-probabilities and its end agree, however tokens come."""

from __future__ import annotations

import math

import pytest

from app.answer import Answer, Piece, TextOptions, join_logprobs
from app.detokenize import Vocabulary
from runner.messages import Delta, TokenLogprob
from tests.app.fake_engine import END, make_byte_tokenizer

VOCABULARY = Vocabulary(make_byte_tokenizer().to_str())


def feed(text: str | bytes, options: TextOptions, per_delta: int = 1) -> tuple[list[Piece], Answer]:
    answer = Answer(VOCABULARY, options)
    ids = list(text.encode() if isinstance(text, str) else text)
    pieces = []
    for at in range(0, len(ids), per_delta):
        step = tuple(ids[at : at + per_delta])
        logprobs = tuple(TokenLogprob(logprob=-float(at + i)) for i in range(len(step)))
        pieces.append(answer.feed(Delta(request_id="r", index=0, token_ids=step, logprobs=logprobs)))
        if answer.is_finished:
            return pieces, answer
    end = Delta(request_id="r", index=0, token_ids=(), finish_reason="stop", stop_token_id=END)
    return [*pieces, answer.feed(end)], answer


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


@pytest.mark.parametrize("per_delta", [1, 2, 3, 100])
def test_stop_string_ends_the_answer_wherever_steps_end(per_delta: int) -> None:
    """Text, end, and the tokens up to the stop string do not depend on how many tokens a step makes."""
    pieces, answer = feed("ABCDEFGHIJ", TextOptions(stops=("DEF",), token_ids="report"), per_delta)
    assert text_of(pieces) == "ABC"
    assert bytes(token for piece in pieces for token in piece.token_ids) == b"ABCDEF"
    assert (pieces[-1].finish_reason, pieces[-1].stop_reason) == ("stop", "DEF")
    assert answer.tokens == 6


def test_stop_string_can_stay_in_the_output() -> None:
    pieces, _ = feed("ABCDEF", TextOptions(stops=("CD",), stop_in_output="keep"))
    assert text_of(pieces) == "ABCD"


def test_stop_strings_wait_for_min_tokens() -> None:
    """The first tokens are not looked at: with min_tokens 3 the first x passes, the next ends the answer."""
    pieces, _ = feed("axbcxd", TextOptions(stops=("x",), min_tokens=3))
    assert text_of(pieces) == "axbc"


def test_end_token_is_counted_and_named() -> None:
    """It was sampled, so it is billed; it is no text."""
    pieces, answer = feed("ab", TextOptions())
    assert (text_of(pieces), pieces[-1].stop_reason, answer.tokens) == ("ab", END, 3)


def test_stop_string_that_is_found_in_the_flush_ends_the_answer() -> None:
    """A U+FFFD at the very end is held by the detokeniser until the flush, and may be the stop string."""
    pieces, _ = feed("a\ufffd", TextOptions(stops=("\ufffd",)))
    assert (text_of(pieces), pieces[-1].stop_reason) == ("a", "\ufffd")


@pytest.mark.parametrize("per_delta", [1, 4])
def test_logprobs_come_with_the_text_of_their_tokens(per_delta: int) -> None:
    """Four tokens make one emoji: their entries come when it does, and their bytes joined are the text."""
    pieces, _ = feed("a👋b", TextOptions(logprobs="report"), per_delta)
    entries = join_logprobs(pieces)
    assert bytes(byte for entry in entries for byte in entry["bytes"]) == "a👋b".encode()
    assert [entry["logprob"] for entry in entries] == [-0.0, -1.0, -2.0, -3.0, -4.0, -5.0]
    shown = ""
    for piece in pieces:
        shown += piece.text
        if piece.logprobs:
            assert piece.text


@pytest.mark.parametrize("per_delta", [1, 3, 100])
def test_logprobs_end_with_the_text_before_a_stop_string(per_delta: int) -> None:
    """Tokens of the stop string are not shown, so neither are their entries."""
    pieces, _ = feed("ABCDEF", TextOptions(stops=("CD",), logprobs="report"), per_delta)
    assert [entry["token"] for entry in join_logprobs(pieces)] == ["A", "B"]


def test_logprob_of_minus_infinity_is_json() -> None:
    """A forced token may have had no chance; JSON has no infinity, OpenAI writes -9999."""
    answer = Answer(VOCABULARY, TextOptions(logprobs="report"))
    logprob = TokenLogprob(logprob=-math.inf, top=((66, -0.25),))
    piece = answer.feed(Delta(request_id="r", index=0, token_ids=(65,), logprobs=(logprob,)))
    assert piece.logprobs == (
        {
            "token": "A",
            "logprob": -9999.0,
            "bytes": [65],
            "top_logprobs": [{"token": "B", "logprob": -0.25, "bytes": [66]}],
        },
    )
