"""The tokenizer learns words without forgetting any."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from demo.tokens import SPECIAL, VOCABULARY, Words, _merge, extend_tokenizer, train_tokenizer

SHIPPED = Path(__file__).parents[2] / "demo" / "model" / "tokenizer.json"
SCENES = 400
TEXTS = ("A red circle moves up behind a blue star.", "What color does the red star become?", "at 13.2 seconds.")


@pytest.fixture(scope="module")
def fresh() -> Tokenizer:
    return train_tokenizer(scenes=SCENES)


def test_the_worked_example() -> None:
    assert _merge(("t", "u", "r", "n"), ("r", "n")) == ("t", "u", "rn")
    assert _merge(("a", "a", "a"), ("a", "a")) == ("aa", "a")


def test_a_tokenizer_from_nothing(fresh: Tokenizer) -> None:
    """Special tokens first, one digit a token, every word of the corpus whole, any text at all spelt back."""
    assert [fresh.id_to_token(place) for place in range(len(SPECIAL))] == list(SPECIAL)
    assert fresh.get_vocab_size() <= VOCABULARY
    assert len(fresh.encode(TEXTS[0]).ids) == 10
    assert [token for token in fresh.encode(TEXTS[2]).tokens if token.strip("Ġ").isdigit()] == ["1", "3", "2"]
    assert fresh.decode(fresh.encode("Zürich, 東京!").ids) == "Zürich, 東京!"


def test_words_are_learnt_and_none_forgotten(fresh: Tokenizer) -> None:
    """A tokenizer that knows all words learns none. One without its last merges learns words again, under new numbers
    at the end, and spells what it knew as before."""
    assert extend_tokenizer(fresh, scenes=SCENES).get_vocab() == fresh.get_vocab()
    data = json.loads(fresh.to_str())
    merges = data["model"]["merges"]
    for pair in merges[-40:]:
        del data["model"]["vocab"]["".join(pair)]
    data["model"]["merges"] = merges[:-40]
    less = Tokenizer.from_str(json.dumps(data))
    again = extend_tokenizer(less, scenes=SCENES)
    assert again.get_vocab().items() >= less.get_vocab().items()
    assert [len(again.encode(text).ids) for text in TEXTS] == [len(fresh.encode(text).ids) for text in TEXTS]
    assert sum(len(less.encode(text).ids) for text in TEXTS) > sum(len(fresh.encode(text).ids) for text in TEXTS)
    assert again.encode(" circle").ids == less.encode(" circle").ids


def test_the_shipped_tokenizer_has_whole_words() -> None:
    """Old and new words are one token each, and times are spelt by digits."""
    words = Words(Tokenizer.from_file(str(SHIPPED)))
    for word in ("circle", "moves", "behind", "turns", "become", "front", "first"):
        assert len(words.of(f" {word}")) == 1, word
    assert words.time(3) == words.of("<3.2 seconds>")
    assert words.time(3, start=8) == words.of("<11.2 seconds>")
    assert words.video_pad == 7
